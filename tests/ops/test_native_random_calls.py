"""Random calls of the native module, most of them wrong: a result or an error, never a crash.

`make sanitize` runs them on a build with AddressSanitizer and UBSan.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from drivers.cpu.native_module import open_kernels
from tests.tiles import bf16_bits, interleaved, tile_matmul_reference

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

TILE_SETS = [name for name in rayvec_native.instruction_sets() if name.startswith("amx_bf16")]
REFUSALS = (TypeError, ValueError)


def damaged(rng, array):
    """The array with at most one thing about it that a kernel cannot take, and whether it has."""
    damage = rng.choice(["none", "none", "dtype", "rank", "layout", "readonly", "size", "missing"])
    if damage == "dtype":
        return array.astype(np.float64), True
    if damage == "rank":
        return array[None], True
    if damage == "layout":
        return np.repeat(array, 2, axis=-1)[..., ::2], array.size > 1
    if damage == "readonly":
        array = array.copy()
        array.flags.writeable = False
        return array, False
    if damage == "size":
        return np.concatenate([array, array[:1]]), len(array) > 0
    if damage == "missing":
        return None, True
    return array, False


@pytest.mark.parametrize("name", TILE_SETS)
def test_random_products_of_tiles(rng, name):
    kernels = open_kernels(name)
    for _ in range(200):
        rows, depth, cols = int(rng.integers(0, 40)), *(int(n) for n in rng.integers(0, 4, 2))
        depth, cols = (32 * depth, 16 * cols) if rng.random() < 0.8 else (31 * depth, 15 * cols)
        a = bf16_bits(rng.standard_normal((rows, depth)))
        b = bf16_bits(rng.standard_normal((depth // 2 * 2, cols)))
        c = rng.standard_normal((rows, cols)).astype(np.float32)
        given, bad = zip(*(damaged(rng, array) for array in (a, interleaved(b), c)))
        before = None if given[2] is None else given[2].copy()
        try:
            rayvec_native.testing.tile_matmul(kernels, *given)
        except REFUSALS:
            read_only = given[2] is not None and not given[2].flags.writeable
            assert any(bad) or read_only or depth % 32 or cols % 16
            np.testing.assert_array_equal(given[2], before)
        else:
            np.testing.assert_array_equal(given[2], tile_matmul_reference(given[0], b, before))
