"""Storage types of the driver's tensors, and how kernels that take two of them are called.

Such a kernel is built for one storage type, and takes behind each tensor a flag: set where the
tensor is float32, and not that type.
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


def require_storage(op: str, *tensors: Array) -> None:
    """Refuse tensors of another dtype than the storage types. Raises DtypeError."""
    for x in tensors:
        if x.dtype not in STORAGE:
            raise DtypeError(f"{op}: got dtype {x.dtype}, wanted one of {NAMES}")


def storage_type(op: str, dtype: DTypeLike) -> np.dtype[Any]:
    """`dtype` as one of the storage types. Raises DtypeError for any other."""
    got = np.dtype(dtype)
    if got not in STORAGE:
        raise DtypeError(f"{op}: to dtype {got}, wanted one of {NAMES}")
    return got


def build_type(op: str, *tensors: Array | None) -> np.dtype[Any]:
    """The storage type to build for where each tensor is in it, in float32, or None.

    Raises DtypeError for two types beside float32.
    """
    narrow = {x.dtype for x in tensors if x is not None and x.dtype != FLOAT32}
    if len(narrow) > 1:
        both = " and ".join(sorted(str(dtype) for dtype in narrow))
        raise DtypeError(f"{op}: got dtypes {both}, wanted one of them beside float32")
    return narrow.pop() if narrow else FLOAT32


def flagged(*tensors: Array | None) -> list[Any]:
    """Each tensor and its flag, as arguments of a launch."""
    return [
        argument
        for x in tensors
        for argument in (x, np.int32(x is not None and x.dtype == FLOAT32))
    ]
