"""Random calls of the native module, most of them wrong: a result or an error, never a crash.

`make sanitize` runs them on a build with AddressSanitizer and UBSan. Each call has a thread of its
own, for a kernel's scratch memory belongs to the thread: it is then no larger than the call wants.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from drivers.cpu.native_module import open_kernels
from tests.ops import damage
from tests.tiles import TILE_SETS, bf16_bits, interleaved, tile_matmul_reference

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = rayvec_native.instruction_sets()
REFUSALS = (TypeError, ValueError)

CALLS = 120
MANY_CALLS = 1500

# Whether a call must be refused: yes, no, or either, where the damage may fit by chance.
REFUSED, TAKEN, EITHER = "refused", "taken", "either"

BAD_INTS = [-1, 0, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64, 1.5, None, "3"]
BAD_FLOATS = [None, "1", [1.0]]
OPTIONAL = {"bias", "residual", "position_bias", "norm_weight"}
LOOSE = {"tables", "weight", "max_x", "linear_out"}  # one row or column more or less may fit
WRITTEN = {"out", "linear_out", "packed_out"}


# ---- sound calls: the names and values of a method's arguments, in order


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def maybe(rng, array):
    return array if rng.random() < 0.5 else None


def result(*shape):
    """NaN, so that what is not written is seen."""
    return np.full(shape, np.nan, np.float32)


def sizes(rng, count, most=40):
    """Each from 0 to `most`, small ones often."""
    return [int(n) for n in rng.integers(0, rng.integers(1, most + 2, count))]


def lengths(rng, most=40):
    return [int(n) for n in rng.integers(0, rng.integers(1, most + 2), rng.integers(1, 5))]


def bounds(each):
    return np.concatenate([[0], np.cumsum(each)]).astype(np.int32)


def pack_linear(rng, kernels):
    rows, depth = sizes(rng, 2)
    gated = bool(rng.integers(2))
    rows *= 2 if gated else 1
    packed = result(kernels.packed_size(rows, depth, gated))
    return {"weight": floats(rng, rows, depth), "gated": gated, "packed_out": packed}


def linear(rng, kernels):
    rows, depth, cols = sizes(rng, 3)
    gated = bool(rng.integers(2))
    outputs = 2 * cols if gated else cols
    packed = np.empty(kernels.packed_size(outputs, depth, gated), np.float32)
    kernels.pack_linear(floats(rng, outputs, depth), gated, packed)
    return {
        "x": floats(rng, rows, depth),
        "packed": packed,
        "bias": maybe(rng, floats(rng, outputs)),
        "residual": None if gated else maybe(rng, floats(rng, rows, cols)),
        "act": rng.choice(list(rayvec_native.Activation)),
        "gated": gated,
        "linear_out": result(rows, cols),
    }


def add_norm(rng, kernels):
    rows, cols = sizes(rng, 2)
    return {
        "x": floats(rng, rows, cols),
        "residual": maybe(rng, floats(rng, rows, cols)),
        "weight_of_norm": floats(rng, cols),
        "bias": maybe(rng, floats(rng, cols)),
        "eps": 1e-5,
        "centred": bool(rng.integers(2)),
        "sandwich": bool(rng.integers(2)),
        "out": result(rows, cols),
    }


def embed(rng, kernels):
    tokens, cols = sizes(rng, 2)
    count = int(rng.integers(1, 4))
    rows = rng.integers(1, 9, count)
    weight = maybe(rng, floats(rng, cols))
    return {
        "tables": [floats(rng, n, cols) for n in rows],
        "ids": [rng.integers(0, n, tokens).astype(np.int32) for n in rows],
        "norm_weight": weight,
        "bias": None if weight is None else maybe(rng, floats(rng, cols)),
        "eps": 1e-5,
        "centred": bool(rng.integers(2)),
        "out": result(tokens, cols),
    }


def attention(rng, kernels):
    each = lengths(rng)
    kv_heads, shared, head_dim = (int(n) for n in rng.integers(1, [4, 4, 131]))
    heads, longest = kv_heads * shared, max(each)
    tables = rng.choice([1, len(each)]), longest + rng.integers(3), rng.integers(head_dim // 2 + 1)
    rope, norm = rng.random(2) < 0.5
    return {
        "qkv": floats(rng, sum(each), (heads + 2 * kv_heads) * head_dim),
        "cu_seqlens": bounds(each),
        "num_heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": 0.1,
        "cos": floats(rng, *tables) if rope else None,
        "sin": floats(rng, *tables) if rope else None,
        "q_norm": floats(rng, head_dim) if norm else None,
        "k_norm": floats(rng, head_dim) if norm else None,
        "norm_eps": 1e-5,
        "window_left": int(rng.choice([-1, 0, 1, 20, 2**63 - 1])),
        "window_right": int(rng.choice([-1, 0, 1, 20, 2**63 - 1])),
        "position_bias": maybe(rng, floats(rng, heads, 2 * max(1, longest) + 3)),
        "out": result(sum(each), heads * head_dim),
    }


def mean_rows(rng, kernels):
    each, (cols,) = lengths(rng), sizes(rng, 1)
    weights = rng.integers(0, 3, sum(each)).astype(np.float32)
    return {
        "x": floats(rng, sum(each), cols),
        "cu_seqlens": bounds(each),
        "weights": weights,
        "out": result(len(each), cols),
    }


def max_rows(rng, kernels):
    (rows, cols, count) = sizes(rng, 3)
    ends = np.sort(rng.integers(0, rows + 1, (2, count)), axis=0).astype(np.int32)
    return {"max_x": floats(rng, rows, cols), "starts": ends[0], "ends": ends[1]} | {
        "out": result(count, cols)
    }


CASES = [pack_linear, linear, add_norm, embed, attention, mean_rows, max_rows]

# ---- what is wrong about a call


def damaged_array(rng, name, array):
    """(the array with one thing about it, whether it must be refused)."""
    kind = rng.choice(["stored", "dtype", "shape", "values", "missing"])
    if kind == "missing":
        return None, TAKEN if name in OPTIONAL else REFUSED
    if kind == "values":
        return damage.not_finite(rng, array), TAKEN
    if kind == "dtype":
        changed = damage.OTHER_DTYPES[rng.choice(list(damage.OTHER_DTYPES))](rng, array)
        return changed, EITHER if changed.dtype == array.dtype else REFUSED
    if kind == "shape":
        changed = damage.OTHER_SHAPES[rng.choice(list(damage.OTHER_SHAPES))](rng, array)
        changed = changed.astype(array.dtype)
        if changed.ndim != array.ndim:
            return changed, REFUSED
        fits = name in LOOSE or changed.shape == array.shape or not array.size
        return changed, EITHER if fits else REFUSED
    how = rng.choice(list(damage.STORED_OTHERWISE))
    changed = damage.STORED_OTHERWISE[how](rng, array)
    if how == "read_only":
        return changed, REFUSED if name in WRITTEN else TAKEN
    if how == "misaligned":
        return changed, REFUSED if array.size else EITHER
    return changed, TAKEN if changed.flags.c_contiguous else REFUSED


def damaged_ids(rng, ids):
    """Ids, or bounds of sequences, of which one is another number."""
    ids = ids.copy()
    if len(ids):
        ids[rng.integers(len(ids))] = rng.choice([-1, -(2**31), 2**31 - 1, 1000])
    return ids, EITHER


def damaged(rng, arguments):
    """The arguments with at most one of them damaged, and whether the call must be refused."""
    if rng.random() < 0.2:
        return arguments, TAKEN
    name = rng.choice([name for name, value in arguments.items() if value is not None])
    value = arguments[name]
    if isinstance(value, list):
        value, place = list(value), rng.integers(len(value))
        if name == "ids" and rng.random() < 0.3:
            value[place], verdict = damaged_ids(rng, value[place])
        else:
            value[place], verdict = damaged_array(rng, name, value[place])
    elif name in ("cu_seqlens", "starts", "ends") and rng.random() < 0.5:
        value, verdict = damaged_ids(rng, value)
    elif isinstance(value, np.ndarray):
        value, verdict = damaged_array(rng, name, value)
    elif isinstance(value, bool):
        value, verdict = rng.choice([None, 2, "yes"]), REFUSED
    elif isinstance(value, int):
        value, verdict = BAD_INTS[rng.integers(len(BAD_INTS))], EITHER
    elif isinstance(value, float):
        value, verdict = BAD_FLOATS[rng.integers(len(BAD_FLOATS))], REFUSED
    else:
        value, verdict = rng.choice([None, 99, -1, "gelu"]), REFUSED
    panels = arguments.get("packed")
    if verdict == REFUSED and name == "x" and panels is not None and not panels.size:
        verdict = EITHER  # where a weight has no columns, any depth fits
    return arguments | {name: value}, verdict


def call(kernels, method, values):
    """In a new thread, whose scratch memory no other call has made larger."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(getattr(kernels, method), *values).result()


def check_random_calls(name, case, count):
    kernels = open_kernels(name)
    method = case.__name__
    taken = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        sound = case(rng, kernels)
        given, verdict = damaged(rng, sound)
        *_, out = given.values()
        before = None if out is None else out.copy()
        try:
            call(kernels, method, given.values())
        except REFUSALS:
            assert verdict != TAKEN, (method, seed)
            np.testing.assert_array_equal(out, before)
        else:
            assert verdict != REFUSED, (method, seed)
            taken += 1
            if given is sound:
                assert not np.isnan(out).any(), (method, seed)
    assert 0.2 * count < taken < 0.9 * count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("name", SETS)
def test_random_calls_give_a_result_or_an_error(name, case):
    check_random_calls(name, case, CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("name", SETS)
def test_many_random_calls_give_a_result_or_an_error(name, case):
    check_random_calls(name, case, MANY_CALLS)


def test_sizes_beyond_any_array_are_refused():
    kernels = open_kernels("portable")
    for rows, depth in [(2**62, 2**62), (-1, 3), (3, -1), (2**31, 1), (1, 2**31)]:
        with pytest.raises(ValueError, match="packed_size: wanted sizes from 0 to 2\\^31 - 1"):
            kernels.packed_size(rows, depth, False)
    nothing = np.empty((3, 0), np.float32)
    for heads in [2**62, 2**31]:
        with pytest.raises(ValueError, match="attention: the sizes of qkv, the heads and out"):
            kernels.attention(
                nothing,
                np.int32([0, 3]),
                heads,
                heads,
                4,
                1.0,
                *[None] * 4,
                0.0,
                -1,
                -1,
                None,
                nothing,
            )
    endless = np.empty((2**60, 0), np.float32)
    row = np.empty(0, np.float32)
    kernels.add_norm(endless, None, row, None, 1e-5, True, False, endless)


# ---- tiles


def damaged_tile(rng, array):
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
        given, bad = zip(*(damaged_tile(rng, array) for array in (a, interleaved(b), c)))
        before = None if given[2] is None else given[2].copy()
        try:
            rayvec_native.testing.tile_matmul(kernels, *given)
        except REFUSALS:
            read_only = given[2] is not None and not given[2].flags.writeable
            assert any(bad) or read_only or depth % 32 or cols % 16
            np.testing.assert_array_equal(given[2], before)
        else:
            np.testing.assert_array_equal(
                given[2], tile_matmul_reference(name, given[0], b, before)
            )
