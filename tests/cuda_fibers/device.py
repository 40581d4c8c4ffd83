"""A device that runs the kernels' sources on CPU fibers; its memory is the host's, and guarded."""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from dataclasses import dataclass

import numpy as np

from drivers.cuda.launch import Build, build_of
from drivers.cuda.matmul import WORKSPACE_BYTES
from tests.cuda_fibers.engine import FiberModule, compile_kernels
from tests.cuda_fibers.fake_cublaslt import FakeCublasLt

C_TYPES = {np.int32: ctypes.c_int32, np.int64: ctypes.c_int64, np.float32: ctypes.c_float}

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(shape, dtype, *, filled=True) -> np.ndarray:
    """A new array full of NaN, at the very end of memory before a page that may not be touched.

    filled: False leaves the zeros that the system gives.
    """
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    inside = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = inside + 2 * mmap.PAGESIZE
    base = LIBC.mmap(None, whole, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"mmap of {whole} bytes")
    LIBC.mprotect(base + mmap.PAGESIZE, inside, mmap.PROT_READ | mmap.PROT_WRITE)
    memory = (ctypes.c_uint8 * size).from_address(base + mmap.PAGESIZE + inside - size)
    weakref.finalize(memory, LIBC.munmap, base, whole)
    bytes_of = np.frombuffer(memory, np.uint8)
    if filled:
        bytes_of[...] = 0xFF
    return bytes_of.view(dtype).reshape(shape)


@dataclass(frozen=True)
class Edit:
    """A change of a theme's source, for a planted mistake.

    before stands there once; what follows `until` is left out, and with it all kernels but `only`.
    """

    theme: str
    before: str
    after: str
    until: str | None = None
    only: tuple[str, ...] = ()

    def made(self, build: Build) -> Build:
        assert build.source.count(self.before) == 1, self.before
        source = build.source.replace(self.before, self.after)
        if self.until is not None:
            source = source.partition(self.until)[0]
        return Build(source, self.only or build.kernels, build.defines)


@functools.cache
def module_of(theme: str, dtype: np.dtype, edit: Edit | None = None) -> FiberModule:
    """The kernels of a theme for a storage type, compiled once."""
    build = build_of(theme, dtype)
    return compile_kernels(edit.made(build) if edit and edit.theme == theme else build)


def argument(value):
    """An argument of a launch as the fibers take it."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, "a launch takes contiguous arrays"
        return value
    return C_TYPES[type(value)](value)


class FiberDevice:
    """A `drivers.cuda.device.Device`. Threads run in the given order; new arrays hold NaN."""

    def __init__(self, order: str, edit: Edit | None = None) -> None:
        self.order = order
        self.edit = edit
        self.fake_cublaslt = FakeCublasLt()

    def new(self, shape, dtype):
        workspace = shape == (WORKSPACE_BYTES,)  # for each driver of each test, and never read
        return guarded(shape, dtype, filled=not workspace)

    def upload(self, array):
        out = guarded(array.shape, array.dtype)
        out[...] = array
        return out

    def download(self, x):
        return np.array(x)

    def launch(self, theme, dtype, launch, arguments):
        module = module_of(theme, dtype, self.edit)
        module.run(launch, [argument(value) for value in arguments], self.order)

    @property
    def stream_address(self):
        return 0x5EA

    def address(self, x):
        return x.ctypes.data

    def cublaslt(self):
        return self.fake_cublaslt


def off_boundary(device, array) -> np.ndarray:
    """The array on the device, a multiple of 16 bytes, but not on a boundary of 16: a view."""
    longer = device.upload(np.append(array.reshape(-1), array.dtype.type(0)))
    view = longer[:-1].reshape(array.shape)
    assert view.nbytes % 16 == 0
    assert view.ctypes.data % 16
    return view
