"""Operations whose tensors may be float32 beside the storage type: which build, which kernel.

A build has one storage type; its kernels for mixed calls end in a letter for each tensor, `s` for
the storage type and `f` for float32, the result first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drivers.cuda.launch import STORAGE
from drivers.dtypes import FLOAT32
from drivers.errors import DtypeError
from drivers.types import Tensor


def storage_of(op: str, *tensors: Tensor) -> np.dtype[Any]:
    """The one storage type of the tensors that are not float32; float32 where all are.

    Raises DtypeError for a dtype that is no storage type, and for two of them beside each other.
    """
    for x in tensors:
        if x.dtype not in STORAGE:
            have = ", ".join(str(known) for known in STORAGE)
            raise DtypeError(f"{op}: got dtype {x.dtype}, wanted one of {have}")
    narrow = list(dict.fromkeys(x.dtype for x in tensors if x.dtype != FLOAT32))
    if len(narrow) > 1:
        raise DtypeError(f"{op}: got dtypes {narrow[0]} and {narrow[1]}, wanted one of them")
    return narrow[0] if narrow else FLOAT32


def mix_of(storage: np.dtype[Any], *tensors: Tensor) -> str:
    """A letter for each tensor: `s` where it has the storage type, else `f`."""
    return "".join("s" if x.dtype == storage else "f" for x in tensors)
