"""Calls of the tile kernels with one argument damaged: a result or an error, never a crash.

`make sanitize` runs them on a build with AddressSanitizer and UBSan.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from drivers.cpu.native_module import open_kernels
from tests.tiles import TILE_SETS

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

NONE, GELU = rayvec_native.Activation.none, rayvec_native.Activation.gelu
REFUSALS = (TypeError, ValueError)


def some_calls(rng):
    """A right call of each kernel: its name and arguments."""
    tokens = int(rng.integers(1, 70))
    width, out, inner = (32 * int(n) for n in rng.integers(1, 4, 3))
    heads, kv_heads = ((2, 1), (2, 2), (3, 1))[rng.integers(0, 3)]
    dim = 32 * int(rng.integers(1, 5))
    cut = int(rng.integers(0, tokens + 1))
    bounds = np.array([0, cut, cut, tokens], np.int32)
    positions = tokens + int(rng.integers(0, 3))

    def floats(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def bits(rows, cols):
        return (floats(rows, cols).view(np.uint32) >> 16).astype(np.uint16).reshape(-1)

    def tiles(cols):
        return bits(-(-tokens // 32) * 32, cols)

    ids = rng.integers(0, 9, tokens).astype(np.int32)
    finish = (floats(tokens, out), floats(out), floats(out), 1e-5, True, False)
    results = (floats(tokens, out), tiles(out))
    all_heads = tiles((heads + 2 * kv_heads) * dim)
    sizes = (tokens, bounds, heads, kv_heads, dim)
    angles = floats(1, positions, dim // 2), floats(1, positions, dim // 2)
    bias = floats(heads, 2 * positions - 1)
    return {
        "pack_tiles": (floats(out, width), False, bits(out, width)),
        "to_tiles": (floats(tokens, width), tiles(width)),
        "to_rows": (tiles(width), floats(tokens, width)),
        "linear_tiles": (
            *(tokens, tiles(width), bits(2 * out, width)),
            *(floats(2 * out), GELU, True, tiles(out)),
        ),
        "linear_heads": (
            *(tokens, tiles(width), bits((heads + 2 * kv_heads) * dim, width)),
            *(floats((heads + 2 * kv_heads) * dim), dim, all_heads.copy()),
        ),
        "linear_rows": (tiles(width), bits(out, width), floats(out), *finish, *results),
        "ffn": (
            *(tiles(width), bits(inner, width), floats(inner), NONE, False),
            *(bits(out, inner), floats(out), *finish, *results),
        ),
        "norm_rows": (floats(tokens, out), *finish, *results),
        "embed_tiles": ([floats(9, out)], [ids], *finish[1:5], *results),
        "prepare_heads": (all_heads.copy(), *sizes, *angles, floats(dim), floats(dim), 1e-6),
        "attend_heads": (all_heads, *sizes, 0.1, 3, -1, bias, tiles(heads * dim)),
    }


def damaged(rng, value):
    """An argument changed a little, or to something else altogether."""
    if isinstance(value, list):
        return [damaged(rng, value[0])]
    if not isinstance(value, np.ndarray):
        return value + 1 if isinstance(value, int) else value
    kind = rng.choice(["dtype", "rank", "layout", "shorter", "longer", "empty", "none", "values"])
    return {
        "dtype": lambda: value.astype(np.float64),
        "rank": lambda: value[None],
        "layout": lambda: np.repeat(value, 2, axis=-1)[..., ::2],
        "shorter": lambda: value[:-1].copy(),
        "longer": lambda: np.concatenate([value, value[:1]]),
        "empty": lambda: value[:0].copy(),
        "none": lambda: None,
        "values": lambda: np.roll(value, 1, axis=0) if value.dtype == np.int32 else value,
    }[kind]()


def misaligned(value):
    """The same values one byte further on."""
    memory = np.empty(value.nbytes + 1, np.uint8)[1:]
    memory[...] = value.reshape(-1).view(np.uint8)
    return memory.view(value.dtype).reshape(value.shape)


@pytest.mark.parametrize("name", TILE_SETS)
def test_calls_of_tile_kernels_with_one_argument_damaged(rng, name):
    kernels, refused = open_kernels(name), 0
    for _ in range(12):
        for kernel, arguments in some_calls(rng).items():
            getattr(kernels, kernel)(*arguments)
            for _ in range(3):
                at = int(rng.integers(0, len(arguments)))
                given = [*arguments[:at], damaged(rng, arguments[at]), *arguments[at + 1 :]]
                try:
                    getattr(kernels, kernel)(*given)
                except REFUSALS:
                    refused += 1
    assert refused > 100


@pytest.mark.parametrize("name", TILE_SETS)
def test_an_array_that_is_not_aligned_to_its_values_is_refused(rng, name):
    kernels = open_kernels(name)
    for kernel, arguments in some_calls(rng).items():
        for at, value in enumerate(arguments):
            if isinstance(value, np.ndarray):
                given = [*arguments[:at], misaligned(value), *arguments[at + 1 :]]
                with pytest.raises(ValueError, match="not aligned"):
                    getattr(kernels, kernel)(*given)


@pytest.mark.parametrize("name", TILE_SETS)
@pytest.mark.parametrize("size", [0, -1, 2**31, 2**62, 2**63 - 1])
def test_sizes_whose_products_overflow_are_refused(rng, name, size):
    kernels = open_kernels(name)
    for kernel, arguments in some_calls(rng).items():
        for at, value in enumerate(arguments):
            if type(value) is int and not (kernel == "attend_heads" and at > 6):  # windows
                given = [*arguments[:at], size, *arguments[at + 1 :]]
                with pytest.raises(REFUSALS):
                    getattr(kernels, kernel)(*given)
