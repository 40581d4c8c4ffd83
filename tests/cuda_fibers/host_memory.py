"""Memory by its address, as a library's calls name it."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import c_int, c_size_t, c_void_p

import numpy as np


class Unreachable(Exception):
    """An address range that is not all this process's to read, or to write."""


class Memory:
    """Copies to and from addresses that may be wrong: the kernel says so instead of a signal."""

    def __init__(self) -> None:
        self._file = os.memfd_create("memory")
        self._libc = ctypes.CDLL(None, use_errno=True)
        for name in ("pread", "pwrite"):
            function = getattr(self._libc, name)
            function.restype = ctypes.c_ssize_t
            function.argtypes = [c_int, c_void_p, c_size_t, ctypes.c_long]

    def read(self, address, elements, dtype):
        """A copy of so many elements. Raises Unreachable."""
        size = elements * np.dtype(dtype).itemsize
        done = self._libc.pwrite(self._file, address, size, 0)
        if done != size:
            raise Unreachable(f"{size} bytes at {address:#x} are not all readable")
        return np.frombuffer(bytearray(os.pread(self._file, size, 0)), dtype)

    def write(self, address, values):
        """Copy an array there. Raises Unreachable."""
        os.pwrite(self._file, values.tobytes(), 0)
        done = self._libc.pread(self._file, address, values.nbytes, 0)
        if done != values.nbytes:
            raise Unreachable(f"{values.nbytes} bytes at {address:#x} are not all writable")


@functools.cache
def memory():
    """One for this process."""
    return Memory()
