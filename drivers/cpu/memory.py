"""Arrays that begin with a cache line, as vectors and tiles read them fastest."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers.numpy.pool import MemoryPool

CACHE_LINE_BYTES = 64
BYTE = np.dtype(np.uint8)


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype[Any], pool: MemoryPool | None = None
) -> NDArray[Any]:
    """An array of undefined values, from the pool where one is given."""
    size = prod(shape) * dtype.itemsize
    room = (size + CACHE_LINE_BYTES,)
    memory = np.empty(room, BYTE) if pool is None else pool.new(room, BYTE)
    start = -memory.__array_interface__["data"][0] % CACHE_LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)
