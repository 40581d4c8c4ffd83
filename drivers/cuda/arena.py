"""Places in one block of memory, and how large the block would have had to be."""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT_BYTES = 256  # what cudaMalloc aligns to at least, and the widest load many times over


class Arena:
    """Hands out offsets into a block, the lowest that fits first, and takes them back.

    The offsets do not end where the block does: what lies beyond `capacity` is the caller's to put
    elsewhere, and `peak_bytes` says how large a block would have held it all. The same requests in
    the same order get the same offsets.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._gaps: list[tuple[int, int]] = []  # (start, end), sorted, none touching another
        self._end = 0  # of the last place in use

    @property
    def live_bytes(self) -> int:
        """Bytes of the places that are out."""
        return sum(self._sizes.values())

    def take(self, size: int) -> int:
        """The offset of a place of at least one byte, a multiple of ALIGNMENT_BYTES."""
        size = -(-max(size, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        for at, (start, end) in enumerate(self._gaps):
            if end - start >= size:
                if end - start == size:
                    del self._gaps[at]
                else:
                    self._gaps[at] = (start + size, end)
                break
        else:
            start = self._end
            self._end += size
            self.peak_bytes = max(self.peak_bytes, self._end)
        self._sizes[start] = size
        return start

    def give(self, offset: int) -> None:
        """Take a place back, joining it with the gaps beside it."""
        start, end = offset, offset + self._sizes.pop(offset)
        at = bisect_left(self._gaps, (start, end))
        if at < len(self._gaps) and self._gaps[at][0] == end:
            end = self._gaps.pop(at)[1]
        if at and self._gaps[at - 1][1] == start:
            at -= 1
            start = self._gaps.pop(at)[0]
        if end == self._end:
            self._end = start
        else:
            self._gaps.insert(at, (start, end))
