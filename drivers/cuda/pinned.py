"""Copies between host and device through pinned memory, which is the only kind that a copy can run
from while the host goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOT_BYTES = 1 << 20  # what a batch sends and gets back is less, array by array
SLOTS = 8  # a batch sends six arrays, and none of them waits for the one before

Bytes = NDArray[np.uint8]


class PinnedSlots:
    """Slots of pinned memory, used in turn; each is used again only when its copy is done."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._runtime = cupy.cuda.runtime
        self._stream = stream
        self._memory = [cupy.cuda.alloc_pinned_memory(SLOT_BYTES) for _ in range(SLOTS)]
        self._bytes = [np.frombuffer(memory, np.uint8, SLOT_BYTES) for memory in self._memory]
        self._done = [cupy.cuda.Event(disable_timing=True) for _ in range(SLOTS)]
        self._next = 0

    def send(self, source: Bytes, to: int) -> None:
        """Copy host bytes to a device address, in the stream's order; returns before it is done."""
        for start in range(0, source.size, SLOT_BYTES):
            part = source[start : start + SLOT_BYTES]
            at = self._free_slot()
            self._bytes[at][: part.size] = part
            self._copy(to + start, self._memory[at].ptr, part.size, "memcpyHostToDevice")
            self._done[at].record(self._stream)

    def fetch(self, source: int, to: Bytes) -> None:
        """Copy from a device address to host bytes, after all that the stream has to do."""
        for start in range(0, to.size, SLOT_BYTES):
            part = to[start : start + SLOT_BYTES]
            at = self._free_slot()
            self._copy(self._memory[at].ptr, source + start, part.size, "memcpyDeviceToHost")
            self._done[at].record(self._stream)
            self._done[at].synchronize()
            part[...] = self._bytes[at][: part.size]

    def _copy(self, to: int, source: int, size: int, kind: str) -> None:
        self._runtime.memcpyAsync(to, source, size, getattr(self._runtime, kind), self._stream.ptr)

    def _free_slot(self) -> int:
        at = self._next
        self._next = (at + 1) % SLOTS
        self._done[at].synchronize()
        return at
