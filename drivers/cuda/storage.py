"""Storage types of the driver's tensors, and how kernels that take two of them are called.

A kernel is built for one storage type, beside which any of its tensors may be float32. It is told
which ones are in one of three ways: by a flag behind each tensor (`flagged`), by the bits of one
number (`wide_bits`), or by being another kernel, whose name ends in a letter for each (`mix_of`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from drivers.cuda.device import Array
from drivers.cuda.launch import STORAGE
from drivers.dtypes import FLOAT32
from drivers.errors import DtypeError

NAMES = ", ".join(str(dtype) for dtype in STORAGE)


def require_storage(op: str, *tensors: Array | None) -> None:
    """Refuse tensors of another dtype than the storage types. Raises DtypeError."""
    for x in tensors:
        if x is not None and x.dtype not in STORAGE:
            raise DtypeError(f"{op}: got dtype {x.dtype}, wanted one of {NAMES}")


def storage_of(op: str, *tensors: Array | None) -> np.dtype[Any]:
    """The one storage type that the tensors have beside float32, or float32; None is no tensor.

    Raises DtypeError for a dtype that is no storage type, and for two of them beside each other.
    """
    require_storage(op, *tensors)
    narrow = {x.dtype for x in tensors if x is not None} - {FLOAT32}
    if len(narrow) > 1:
        both = " and ".join(sorted(str(dtype) for dtype in narrow))
        raise DtypeError(f"{op}: got dtypes {both}, wanted one of them beside float32")
    return narrow.pop() if narrow else FLOAT32


def storage_type(op: str, dtype: DTypeLike) -> np.dtype[Any]:
    """`dtype` as one of the storage types. Raises DtypeError for any other."""
    got = np.dtype(dtype)
    if got not in STORAGE:
        raise DtypeError(f"{op}: to dtype {got}, wanted one of {NAMES}")
    return got


def flagged(*tensors: Array | None) -> list[Any]:
    """Each tensor and whether it is float32, as arguments of a launch."""
    return [
        argument
        for x in tensors
        for argument in (x, np.int32(x is not None and x.dtype == FLOAT32))
    ]


def wide_bits(storage: np.dtype[Any], bits: dict[str, int], **tensors: Array | None) -> np.int32:
    """A kernel's `wide`: the bits of the tensors that are float32 where STORAGE is narrower."""
    if storage == FLOAT32:
        return np.int32(0)
    wide = [name for name, x in tensors.items() if x is not None and x.dtype == FLOAT32]
    return np.int32(sum(bits[name] for name in wide))


def mix_of(storage: np.dtype[Any], *tensors: Array) -> str:
    """A letter for each tensor, the result first: `s` where it has the storage type, else `f`."""
    return "".join("s" if x.dtype == storage else "f" for x in tensors)
