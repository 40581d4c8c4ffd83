"""The stand-in for CuPy against CuPy itself, as far as that runs without a GPU: its arrays do, over
host memory."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import drivers.cuda
from drivers.cuda.arena import Arena
from drivers.cuda.device_memory import Place
from drivers.dtypes import BFLOAT16
from tests.cuda_fibers.fake_cupy import FakeCupy

cupy = pytest.importorskip("cupy", reason="not installed without the extra cuda12 or cuda13")

BYTES = 8192
SOURCES = Path(drivers.cuda.__file__).parent
EXPRESSIONS = (
    "x.shape", "x.dtype", "x.size", "x.nbytes", "x.ndim", "x.itemsize", "x.strides", "len(x)",
    "x.flags.c_contiguous", "x.T.flags.c_contiguous", "x.T.shape", "x[1:3].flags.c_contiguous",
    "x[:, :3].flags.c_contiguous", "x[0:0].shape", "x[0].shape", "x[-1].data.ptr - x.data.ptr",
    "x[2:].data.ptr - x.data.ptr", "x[1:3][1].data.ptr - x.data.ptr", "x.reshape(-1).shape",
    "x.reshape(2, -1).shape", "x.reshape((8, 4)).strides", "x.reshape(-1).data.ptr - x.data.ptr",
    "x.ravel().shape", "x.view(np.uint8).shape", "x.view(np.uint8).dtype", "x[1:].data.mem is mem",
    "x[3, 2].shape", "x[3, 2].data.ptr - x.data.ptr",
)  # fmt: skip


def value(module, expression, dtype):
    """What an expression of an array (4, 8) comes to."""
    buffer = np.zeros(BYTES, np.uint8)
    mem = module.cuda.UnownedMemory(buffer.ctypes.data, BYTES, buffer, 0)
    x = module.ndarray((4, 8), dtype, module.cuda.MemoryPointer(mem, 256))
    assert x.data.ptr == buffer.ctypes.data + 256
    return eval(expression, {"x": x, "np": np, "mem": mem})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.int32])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_arrays_are_alike(expression, dtype):
    assert value(FakeCupy(), expression, dtype) == value(cupy, expression, dtype)


@pytest.mark.parametrize("module", [cupy, FakeCupy()], ids=["cupy", "fake"])
def test_no_array_turns_into_one_of_numpy(module):
    with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
        value(module, "np.asarray(x)", np.float32)


@pytest.mark.parametrize("module", [cupy, FakeCupy()], ids=["cupy", "fake"])
def test_memory_lives_as_long_as_the_last_array_over_it(module):
    arena, buffer = Arena(BYTES), np.zeros(BYTES, np.uint8)
    place = Place(arena, arena.take(BYTES), buffer)
    memory = module.cuda.UnownedMemory(buffer.ctypes.data, BYTES, place, 0)
    x = module.ndarray((4, 8), np.float32, module.cuda.MemoryPointer(memory, 0))
    view = x[1:].reshape(-1)[3:]
    del place, memory, x
    assert arena.live_bytes == BYTES
    del view
    assert arena.live_bytes == 0


def test_cupy_has_every_name_that_the_driver_uses():
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    names = set(re.findall(r"\b_?cupy\.([\w.]*\w)", text))
    assert {"cuda.runtime.CUDARuntimeError", "cuda.MemoryPool", "ndarray", "RawModule"} <= names
    for module in (cupy, FakeCupy()):
        for name in names:
            found = module
            for part in name.split("."):
                assert hasattr(found, part), name
                found = getattr(found, part)


def test_calls_have_the_names_of_cupys_arguments():
    """As far as CuPy tells: most of it is compiled."""
    for name in ("Stream", "Event"):
        real, fake = (getattr(module.cuda, name).__init__ for module in (cupy, FakeCupy()))
        assert list(inspect.signature(fake).parameters) == list(inspect.signature(real).parameters)
    assert cupy.RawModule.__doc__.startswith("RawModule(str code=None, *, str path=None, tuple opt")
    assert "str backend='nvrtc'" in cupy.RawModule.__doc__.splitlines()[0]
    assert "grid, block, args, \\*, shared_mem=0" in cupy.RawKernel.__call__.__doc__
    assert cupy.cuda.MemoryPool.malloc.__doc__.startswith("MemoryPool.malloc(self, size_t size)")
    assert cupy.cuda.runtime.memcpyAsync.__doc__ == (
        "memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)"
    )
    elapsed = "get_elapsed_time(start_event, end_event)"
    assert cupy.cuda.get_elapsed_time.__doc__.startswith(elapsed)
    for name in ("compile", "get_function"):
        assert hasattr(cupy.RawModule, name)
    for name in ("kernel", "max_dynamic_shared_size_bytes"):
        assert hasattr(cupy.RawKernel, name)
    for name in ("mem_info", "compute_capability", "use"):
        assert hasattr(cupy.cuda.Device, name)
