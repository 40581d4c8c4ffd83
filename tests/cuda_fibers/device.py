"""A device whose kernels run on fibers, and whose arrays are NumPy's, each behind a guard."""

from __future__ import annotations

import functools

import numpy as np

from drivers.cuda.launch import build_of
from drivers.cuda.matmul import WORKSPACE_BYTES
from tests.cuda_fibers.engine import FiberModule, compile_kernels
from tests.cuda_fibers.fake_cublaslt import FakeCublasLt
from tests.cuda_fibers.host_memory import guarded
from tests.cuda_fibers.planted import Edit


@functools.cache
def module_of(theme: str, dtype: np.dtype, edit: Edit | None = None) -> FiberModule:
    """The kernels of a theme for a storage type, compiled once."""
    build = build_of(theme, dtype)
    if edit and edit.theme == theme:
        return compile_kernels(edit.made(build), edit.level)
    return compile_kernels(build)


class FiberDevice:
    """A `drivers.cuda.device.BatchDevice`. Threads run in the given order; new arrays hold NaN.

    Every array has memory of its own, in a batch too, so that nothing lies behind its last value.
    edit: a mistake planted in the kernels.
    """

    name = "cuda:0"

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
        module_of(theme, dtype, self.edit).run(launch, arguments, self.order)

    def load_kernels(self, dtype):
        pass

    open_arena = close_arena = synchronize = lambda self: None

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
