"""The memory of one device: an arena for what batches make, CuPy's pool for what stays."""

from __future__ import annotations

import logging
from math import prod
from typing import Any

import numpy as np

from drivers.cuda.arena import ALIGNMENT_BYTES, Arena
from drivers.cuda.device import Array

logger = logging.getLogger(__name__)


class Place:
    """A place in the arena, given back when the last array over it is gone."""

    __slots__ = ("_arena", "block", "offset")

    def __init__(self, arena: Arena, offset: int, block: Any) -> None:
        """block: the memory that the place lies in, kept alive by it."""
        self._arena = arena
        self.offset = offset
        self.block = block

    def __del__(self) -> None:
        self._arena.give(self.offset)


class DeviceMemory:
    """Arrays in the arena while it is open, else from a pool of CuPy's.

    The arena is one block. It is as large as the batches before needed it: what the first batch has
    no place for comes from the pool (`spilled_total`), and the next batch finds a block that would
    have held it. A place is free again as soon as no array lies over it: the work that still reads
    it was launched before any work on the array that comes next, on the same stream. An array that
    is held on keeps its place, whatever is closed, and a new block leaves the old one to it.
    """

    def __init__(self, cupy: Any, gpu: Any) -> None:
        self._cupy = cupy
        self._gpu = gpu
        self._pool = cupy.cuda.MemoryPool()
        self._arena = Arena(0)
        self._block: Any = None  # of the arena, a MemoryPointer
        self._in_arena = False
        self.spilled_total = 0
        self.blocks_total = 0

    @property
    def arena_bytes(self) -> int:
        """Size of the arena's block."""
        return self._arena.capacity

    def open_arena(self) -> None:
        """What is made from here on lies in the arena. Raises CuPy's OutOfMemoryError."""
        if self._arena.peak_bytes > self._arena.capacity:
            self._grow()
        self._in_arena = True

    def close_arena(self) -> None:
        """What is made from here on comes from the pool."""
        self._in_arena = False

    def forget_peak(self) -> None:
        """Keep the arena as it is: what it would have needed is more than the device has."""
        self._arena.peak_bytes = self._arena.capacity
        self._pool.free_all_blocks()

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of undefined values. Raises CuPy's OutOfMemoryError."""
        size = max(1, prod(shape) * dtype.itemsize)
        memory = self._place(size) if self._in_arena else self._allocate(size)
        return self._cupy.ndarray(shape, dtype, memory)

    def described(self) -> str:
        """How much is free, for a message."""
        free, total = self._gpu.mem_info
        return (
            f"{free >> 20:,} of {total >> 20:,} MiB are free, this driver holds "
            f"{self._pool.total_bytes() >> 20:,} MiB"
        )

    def _place(self, size: int) -> Any:
        """A MemoryPointer to a place in the arena, or beside it where it is too small."""
        offset = self._arena.take(size)
        place = Place(self._arena, offset, self._block)
        if offset + size <= self._arena.capacity:
            start = self._block.ptr + offset
        else:
            self.spilled_total += 1
            place.block = self._allocate(size)
            start = place.block.ptr
        cuda = self._cupy.cuda
        return cuda.MemoryPointer(cuda.UnownedMemory(start, size, place, self._gpu.id), 0)

    def _grow(self) -> None:
        wanted = self._arena.peak_bytes
        self._block = None
        self._arena = Arena(0)
        self._pool.free_all_blocks()
        self._block = self._allocate(wanted)
        self._arena = Arena(wanted)
        self.blocks_total += 1
        logger.info("cuda:%d: an arena of %d MiB", self._gpu.id, wanted >> 20)

    def _allocate(self, size: int) -> Any:
        """Memory of the pool, which gives back what it keeps for reuse before it has none."""
        whole = -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        try:
            return self._pool.malloc(whole)
        except self._cupy.cuda.memory.OutOfMemoryError:
            self._pool.free_all_blocks()
            return self._pool.malloc(whole)
