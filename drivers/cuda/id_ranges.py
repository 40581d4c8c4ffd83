"""What the host knows of ids that it uploaded, so that checking them needs no copy back."""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

from drivers.cuda.device import Array


class IdRanges:
    """The smallest and the largest id of each array on the device, as long as the array lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Array], int, int]] = {}

    def remember(self, array: Array, host_ids: NDArray[np.int32]) -> None:
        """The array on the device holds these ids, and nobody writes to it."""
        if host_ids.size == 0:
            return
        key = id(array)
        gone = weakref.ref(array, lambda _: self._known.pop(key, None))
        self._known[key] = (gone, int(host_ids.min()), int(host_ids.max()))

    def within(self, array: Array, size: int) -> bool:
        """Whether the array is known to hold ids from 0 to size - 1 alone."""
        whose, smallest, largest = self._known.get(id(array), (None, -1, -1))
        return whose is not None and whose() is array and smallest >= 0 and largest < size
