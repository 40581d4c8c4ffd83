"""What the themes of the NumPy driver share: the type of tensors, and where results are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers.dtypes import FLOAT16, FLOAT32
from drivers.numpy.pool import MemoryPool
from drivers.results import Results

Array = NDArray[Any]


def float32(x: Array) -> NDArray[np.float32]:
    """The values in float32, without a copy where they are float32 already."""
    return x.astype(np.float32, copy=False)


class NumpyOps(Results[Array]):
    """Base of the themes. Tensors are NumPy arrays."""

    _storage = (FLOAT32, FLOAT16)
    _storage_names = "float32 or float16"

    def __init__(self) -> None:
        self.pool_memory = MemoryPool()

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.pool_memory.new(shape, dtype)
