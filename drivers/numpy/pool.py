"""Memory that is used again: the scopes between `save_pool_cursor` and `restore_pool_cursor`."""

from __future__ import annotations

from math import prod
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from drivers.errors import DriverError

Buffer = NDArray[np.uint8]


class Loan:
    """One use of a buffer. The array that is made of it, and every view of that, keep it alive."""

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.buffer = buffer
        self.__array_interface__ = buffer.__array_interface__ | {
            "shape": shape,
            "typestr": dtype.str,
            "descr": [("", dtype.str)],
        }


class MemoryPool:
    """Buffers that are lent in order and come back when their scope closes.

    A buffer still lent when its scope closes is forgotten: it is freed as any array is.
    `fresh_bytes` counts what was asked of the system while scopes were open, `reused_total` the
    arrays that were made of memory used before.
    """

    def __init__(self) -> None:
        self.fresh_bytes = 0
        self.reused_total = 0
        self._taken: list[tuple[Buffer, ReferenceType[Loan]]] = []
        self._free: list[Buffer] = []
        self._scopes: list[int] = []

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of undefined values, from the pool where a scope is open."""
        if not self._scopes:
            return np.empty(shape, dtype)
        buffer = self._take(prod(shape) * dtype.itemsize)
        loan = Loan(buffer, shape, dtype)
        self._taken.append((buffer, ref(loan)))
        return np.asarray(loan)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of zeros, from the pool where a scope is open."""
        if not self._scopes:
            return np.zeros(shape, dtype)
        array = self.new(shape, dtype)
        array.fill(0)
        return array

    def _take(self, size: int) -> Buffer:
        """The smallest free buffer that fits; where none does, a new one replaces the largest."""
        fitting = [buffer for buffer in self._free if buffer.size >= size]
        if fitting:
            self.reused_total += 1
            return self._drop(min(fitting, key=len))
        if self._free:
            self._drop(max(self._free, key=len))
        self.fresh_bytes += size
        return np.empty(size, np.uint8)

    def _drop(self, buffer: Buffer) -> Buffer:
        """`buffer`, no longer free."""
        self._free = [free for free in self._free if free is not buffer]
        return buffer

    def save(self) -> int:
        """Open a scope; the cursor that `restore` closes it by."""
        self._scopes.append(len(self._taken))
        return len(self._taken)

    def restore(self, saved: int) -> None:
        """Close the last scope, keeping the buffers that nothing holds any more for reuse."""
        if not self._scopes or self._scopes[-1] != saved:
            have = f"the last saved is {self._scopes[-1]}" if self._scopes else "none is saved"
            raise DriverError(f"restore_pool_cursor: cursor {saved}, but {have}")
        self._scopes.pop()
        self._free += [buffer for buffer, loan in self._taken[saved:] if loan() is None]
        del self._taken[saved:]

    def clear(self) -> None:
        """Forget all scopes and give all memory back."""
        self._taken.clear()
        self._free.clear()
        self._scopes.clear()
