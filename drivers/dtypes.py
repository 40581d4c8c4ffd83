"""Dtype rules as pure functions, beside the shape rules of `drivers.shapes`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from drivers.errors import DtypeError
from drivers.types import Tensor

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)  # of the cpu driver's tiles alone
FLOAT16 = np.dtype(np.float16)
FLOAT32 = np.dtype(np.float32)
INT32 = np.dtype(np.int32)


def require(op: str, name: str, x: Tensor | None, want: np.dtype[Any]) -> None:
    """Refuse a tensor of another dtype than `want`; None, an argument left out, passes.

    Raises DtypeError naming the operation, the argument, what was got and what was wanted.
    """
    if x is not None and x.dtype != want:
        raise DtypeError(f"{op}: {name} has dtype {x.dtype}, wanted {want}")


def require_float(op: str, *tensors: Tensor) -> None:
    """Refuse tensors that are neither float32 nor float16."""
    for x in tensors:
        if x.dtype not in (FLOAT32, FLOAT16):
            raise DtypeError(f"{op}: got dtype {x.dtype}, wanted float32 or float16")


def storage(op: str, dtype: DTypeLike) -> np.dtype[Any]:
    """`dtype` as one of the two storage types, refusing any other."""
    got = np.dtype(dtype)
    if got not in (FLOAT32, FLOAT16):
        raise DtypeError(f"{op}: to dtype {got}, wanted float32 or float16")
    return got
