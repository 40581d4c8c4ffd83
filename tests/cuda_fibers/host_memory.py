"""The host's memory in a device's place: arrays behind guards, and memory by its address."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from ctypes import c_int, c_long, c_size_t, c_ssize_t, c_void_p

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = c_void_p
LIBC.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
LIBC.munmap.argtypes = [c_void_p, c_size_t]
LIBC.mprotect.argtypes = [c_void_p, c_size_t, c_int]
for _copy in (LIBC.pread, LIBC.pwrite):
    _copy.restype = c_ssize_t
    _copy.argtypes = [c_int, c_void_p, c_size_t, c_long]


def bytes_at(address, size, *release):
    """The bytes there. release: what is called, and with what, when nothing holds them."""
    memory = (ctypes.c_uint8 * size).from_address(address)
    if release:
        weakref.finalize(memory, *release)
    return np.frombuffer(memory, np.uint8)


def guarded(shape, dtype, *, filled=True) -> np.ndarray:
    """A new array full of NaN, at the very end of memory before a page that may not be touched.

    filled: False leaves the zeros that the system gives.
    """
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    inside = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = inside + 2 * mmap.PAGESIZE
    base = LIBC.mmap(None, whole, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base in (None, c_void_p(-1).value):
        raise MemoryError(f"mmap of {whole} bytes")
    LIBC.mprotect(base + mmap.PAGESIZE, inside, mmap.PROT_READ | mmap.PROT_WRITE)
    start = base + mmap.PAGESIZE + inside - size
    values = bytes_at(start, size, LIBC.munmap, base, whole)
    if filled:
        values[...] = 0xFF
    return values.view(dtype).reshape(shape)


class Unreachable(Exception):
    """An address range that is not all this process's to read, or to write."""


class Memory:
    """Copies to and from addresses that may be wrong: the kernel says so instead of a signal."""

    def __init__(self) -> None:
        self._file = os.memfd_create("memory")

    def read(self, address, elements, dtype):
        """A copy of so many elements. Raises Unreachable."""
        size = elements * np.dtype(dtype).itemsize
        done = LIBC.pwrite(self._file, address, size, 0)
        if done != size:
            raise Unreachable(f"{size} bytes at {address:#x} are not all readable")
        return np.frombuffer(bytearray(os.pread(self._file, size, 0)), dtype)

    def write(self, address, values):
        """Copy an array there. Raises Unreachable."""
        os.pwrite(self._file, values.tobytes(), 0)
        done = LIBC.pread(self._file, address, values.nbytes, 0)
        if done != values.nbytes:
            raise Unreachable(f"{values.nbytes} bytes at {address:#x} are not all writable")


@functools.cache
def memory():
    """One for this process."""
    return Memory()
