"""Weights in panels: `unpacked` gives back what was packed, whatever the size."""

from __future__ import annotations

import os

import numpy as np
import pytest

from drivers.cpu.memory import CACHE_LINE_BYTES, aligned_empty
from drivers.cpu.native_module import open_kernels
from drivers.cpu.packed import pack_linear

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = rayvec_native.instruction_sets()
ROWS = [*range(10), 14, 15, 16, 17, 30, 31, 32, 33, 34, 63, 64, 66, 96, 130]
DEPTHS = [0, 1, 2, 7, 33]


@pytest.mark.parametrize("gated", [False, True], ids=["linear", "gated"])
@pytest.mark.parametrize("name", SETS)
def test_unpacked_is_the_inverse_of_packing(rng, name, gated):
    kernels = open_kernels(name)
    for rows in ROWS:
        for depth in DEPTHS:
            if gated and rows % 2:
                continue
            weight = rng.standard_normal((rows, depth)).astype(np.float32)
            packed = pack_linear(kernels, weight, gated=gated)
            assert (packed.shape, packed.dtype) == (weight.shape, np.float32)
            assert (packed.gated, packed.lanes) == (gated, kernels.lanes)
            back = packed.unpacked()
            assert back.flags.c_contiguous
            assert np.array_equal(back, weight)


@pytest.mark.parametrize("name", SETS)
def test_panels_are_two_vectors_wide_and_zero_beyond_the_last_row(rng, name):
    """A gated panel holds one vector of each half."""
    kernels = open_kernels(name)
    lanes, rows, depth = kernels.lanes, 2 * kernels.lanes + 2, 3
    weight = rng.standard_normal((rows, depth)).astype(np.float32)
    linear = pack_linear(kernels, weight, gated=False).panels.reshape(2, depth, 2 * lanes)
    assert np.array_equal(linear[0], weight[: 2 * lanes].T)
    assert np.array_equal(linear[1, :, :2], weight[2 * lanes :].T)
    assert not linear[1, :, 2:].any()
    gated = pack_linear(kernels, weight, gated=True).panels.reshape(2, depth, 2, lanes)
    for half, columns in enumerate(np.split(weight, 2)):
        assert np.array_equal(gated[0, :, half], columns[:lanes].T)
        assert np.array_equal(gated[1, :, half, :1], columns[lanes:].T)
    assert not gated[1, :, :, 1:].any()


@pytest.mark.parametrize("size", [1, 15, 16, 1000])
def test_panels_begin_with_a_cache_line(size):
    memory = aligned_empty((size,), np.dtype(np.float32))
    assert (memory.shape, memory.dtype) == ((size,), np.float32)
    assert memory.ctypes.data % CACHE_LINE_BYTES == 0
    memory[...] = 1  # all of it is there to be written
