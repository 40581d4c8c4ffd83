"""Products, norms and tables in bfloat16 on emulated tiles, against float64 and its roundings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers import open_driver
from drivers.dtypes import BFLOAT16
from drivers.types import EmbeddingTable, Encoding, NormWeights
from tests import oracle
from tests.ops.tile_cases import (
    ACTIVATION_ERROR,
    ROUNDING,
    bf16,
    floats,
    is_within,
    pack,
    rounded,
    sums_noise,
)
from tests.tiles import TILE_SETS

pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")

ACTS = [None, *sorted(oracle.ACTIVATIONS)]
QUICK = settings(max_examples=12, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module", params=TILE_SETS)
def tiles(request):
    """One driver for all, which must have run everything on tiles in the end."""
    driver = open_driver(f"cpu:{request.param}")
    yield driver
    assert not driver.composed_calls


def activated(y, act):
    return y if act is None else oracle.ACTIVATIONS[act](y)


def bf16_budget(want, noise):
    """One rounding of the answer, and what the sums and the activation err by before it."""
    return ROUNDING * (np.abs(want) + noise) + 1.13 * noise + ACTIVATION_ERROR


# ---- layouts


@pytest.mark.parametrize(("rows", "depth", "role"), [(96, 64, "linear"), (128, 96, "gated")])
def test_a_packed_weight_unpacks_to_its_rounded_values(tiles, rng, rows, depth, role):
    weight = floats(rng, rows, depth)
    packed = pack(tiles, weight, role)
    assert (packed.shape, packed.dtype) == ((rows, depth), BFLOAT16)
    np.testing.assert_array_equal(tiles.to_host(packed), rounded(weight))


@pytest.mark.parametrize("tokens", [1, 16, 31, 32, 33, 70])
def test_rows_survive_tiles(tiles, rng, tokens):
    x = tiles.from_host(bf16(rng, tokens, 96))
    want = x.rows.copy()
    from_tiles = type(x)(tiles._tiles.space, x.shape, tiles=x.tiles)
    np.testing.assert_array_equal(from_tiles.rows, want)
    assert not x.tiles.reshape(-1, 3, 16, 32).transpose(0, 2, 1, 3).reshape(-1, 96)[tokens:].any()


# ---- products rounded to bf16


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("tokens", "depth", "out"), [(1, 32, 64), (37, 96, 96), (70, 800, 32)])
def test_linear_rounds_once(tiles, rng, tokens, depth, out, act):
    x, weight = bf16(rng, tokens, depth), bf16(rng, out, depth, scale=1.5 * depth**-0.5)
    bias = floats(rng, out)
    y = oracle.gemm(x, weight, transpose_b=True) + bias
    got = tiles.to_host(tiles.linear(tiles.from_host(x), pack(tiles, weight), bias, act=act))
    budget = bf16_budget(activated(y, act), sums_noise(x, weight))
    assert is_within(got, activated(y, act), budget)
    assert np.array_equal(got, rounded(got))
    for other in ACTS:
        wrong = activated(y, other)
        far = np.abs(wrong - activated(y, act)).max() > 2e-2
        if other != act and far:
            assert not is_within(got, wrong, budget)
    assert not is_within(got, activated(y - bias, act), budget)


@pytest.mark.parametrize(("act", "other"), [("gelu", "gelu_tanh"), ("gelu_tanh", "gelu")])
def test_the_two_forms_of_gelu_are_told_apart(tiles, act, other):
    """Near -2.5 both are small, so that rounding is too, and they differ by 4e-4."""
    x = np.linspace(-9, 9, 70 * 32).reshape(70, 32).astype(BFLOAT16)
    got = tiles.to_host(
        tiles.linear(tiles.from_host(x), pack(tiles, np.eye(32, dtype=np.float32)), act=act)
    )
    for name, right in ((act, True), (other, False)):
        want = oracle.ACTIVATIONS[name](x)
        assert is_within(got, want, ROUNDING * np.abs(want) + ACTIVATION_ERROR) == right


@pytest.mark.parametrize("act", ACTS[1:])
@pytest.mark.parametrize(("tokens", "depth", "inner"), [(1, 32, 32), (45, 96, 96)])
def test_a_gated_layer_rounds_once(tiles, rng, tokens, depth, inner, act):
    x, weight = bf16(rng, tokens, depth), bf16(rng, 2 * inner, depth, scale=depth**-0.5)
    bias = floats(rng, 2 * inner)
    y = oracle.gemm(x, weight, transpose_b=True) + bias
    first, second = y[:, :inner], y[:, inner:]
    want = oracle.gated(first, second, act)
    packed = pack(tiles, weight, "gated")
    got = tiles.to_host(tiles.gated_linear(tiles.from_host(x), packed, bias, act=act))
    noise = sums_noise(x, weight)
    before = (1.13 * noise + ACTIVATION_ERROR) * np.abs(second) + noise * np.abs(first)
    budget = ROUNDING * np.abs(want) + 1.01 * before + noise**2
    assert is_within(got, want, budget)
    assert not is_within(got, oracle.gated(second, first, act), budget)


# ---- products that stay in float32 until the row is done


def norm_of(rng, width, kind):
    weight, bias = floats(rng, 2, width)
    return NormWeights(weight, bias if kind == "layer" else None, 1e-5, kind)


def normed(y, norm):
    if norm.kind == "rms":
        return oracle.rms_norm(y, norm.weight, eps=norm.eps)
    return oracle.layer_norm(y, norm.weight, norm.bias, eps=norm.eps)


def ordered(y, residual, norm, order):
    residual = 0 if residual is None else residual
    if norm is None:
        return y + residual
    return normed(y + residual, norm) if order == "pre" else residual + normed(y, norm)


def norm_budget(y, norm, error):
    """What rows that err by `error` come to after a norm; the rows are not nearly constant."""
    spread = 1 if norm is None else np.abs(norm.weight).max() / y.std(axis=1).min()
    return 2 * (1 + spread) * error + 1e-5


CASES = st.tuples(
    st.integers(1, 70),
    st.sampled_from([32, 64, 96, 832]),
    st.sampled_from([32, 96]),
    st.sampled_from(["layer", "rms", None]),
    st.sampled_from(["pre", "sandwich"]),
    st.booleans(),
    st.integers(0, 2**16),
)


@QUICK
@given(CASES)
def test_a_layer_with_its_residual_and_norm_rounds_nothing(tiles, case):
    tokens, depth, out, kind, order, with_residual, seed = case
    rng = np.random.default_rng(seed)
    x, weight = bf16(rng, tokens, depth), bf16(rng, out, depth, scale=depth**-0.5)
    bias = floats(rng, out)
    residual = floats(rng, tokens, out) if with_residual or kind is None else None
    norm = None if kind is None else norm_of(rng, out, kind)
    y = oracle.gemm(x, weight, transpose_b=True) + bias
    want = ordered(y, residual, norm, order)
    packed, tensor = pack(tiles, weight), tiles.from_host(x)
    if norm is None:
        got = tiles.linear(tensor, packed, bias, residual=residual)
    else:
        got = tiles.add_norm(tiles.linear(tensor, packed, bias), residual, norm, order=order)
        np.testing.assert_array_equal(
            tiles.to_host(type(got)(tiles._tiles.space, got.shape, tiles=got.tiles)),
            rounded(got.rows),
        )
    budget = norm_budget(y, norm, sums_noise(x, weight))
    assert budget < 1e-2
    assert is_within(tiles.to_host(got), want, budget)


@QUICK
@given(CASES)
def test_two_layers_round_between_them_alone(tiles, case):
    tokens, _, width, kind, order, gated, seed = case
    rng = np.random.default_rng(seed)
    inner = int(rng.choice([32, 384, 416]))
    x, residual = bf16(rng, tokens, width), floats(rng, tokens, width)
    first = bf16(rng, inner * (1 + gated), width, scale=width**-0.5)
    second = bf16(rng, width, inner, scale=inner**-0.5)
    biases = floats(rng, len(first)), floats(rng, width)
    norm = None if kind is None else norm_of(rng, width, kind)
    h = oracle.gemm(x, first, transpose_b=True) + biases[0]
    h = oracle.gated(h[:, :inner], h[:, inner:], "silu") if gated else oracle.gelu(h)
    y = oracle.gemm(rounded(h), second, transpose_b=True) + biases[1]
    want = ordered(y, residual, norm, order)

    tensor, packed = tiles.from_host(x), pack(tiles, first, "gated" if gated else "linear")
    if gated:
        middle = tiles.gated_linear(tensor, packed, biases[0], act="silu")
    else:
        middle = tiles.linear(tensor, packed, biases[0], act="gelu")
    if norm is None:
        got = tiles.linear(middle, pack(tiles, second), biases[1], residual=residual)
    else:
        product = tiles.linear(middle, pack(tiles, second), biases[1])
        got = tiles.add_norm(product, residual, norm, order=order)
    assert middle.waits
    # a value near the middle of two bf16 may go either way; the polynomial moves small ones
    either = np.abs(rounded(h)).max() * ROUNDING * 2 * np.abs(second.astype(np.float64)).max()
    moved = ACTIVATION_ERROR * np.abs(second.astype(np.float64)).sum(axis=1).max()
    error = either + moved + sums_noise(rounded(h), second)
    budget = norm_budget(y, norm, error)
    assert is_within(tiles.to_host(got), want, budget)
    assert not is_within(tiles.to_host(got), ordered(y - biases[1], residual, norm, order), budget)


# ---- rows


@QUICK
@given(CASES)
def test_norms_of_rows_are_float32(tiles, case):
    tokens, width, _, kind, order, with_residual, seed = case
    rng = np.random.default_rng(seed)
    x = floats(rng, tokens, width).astype(BFLOAT16)
    residual = floats(rng, tokens, width) if with_residual else None
    norm = norm_of(rng, width, kind or "layer")
    got = tiles.add_norm(tiles.from_host(x), residual, norm, order=order)
    want = ordered(oracle.wide(x), residual, norm, order)
    assert got.dtype == BFLOAT16
    assert is_within(got.rows, want, 1e-5 * (1 + np.abs(want).max()))


@pytest.mark.parametrize("value", [0.0, 1e-3, 100.1, -3e4])
def test_a_row_of_equal_values_gives_the_bias(tiles, rng, value):
    norm = norm_of(rng, 96, "layer")
    norm = NormWeights(norm.weight, norm.bias, 1e-12)
    x = tiles.from_host(np.full((3, 96), value, np.float32).astype(BFLOAT16))
    got = tiles.add_norm(x, None, norm)
    assert np.abs(got.rows - norm.bias).max() <= 1e-5


@pytest.mark.parametrize("with_norm", [False, True])
def test_tables_stay_float32(tiles, rng, with_norm):
    lengths = (7, 1, 33)
    batch = tiles.prepare_batch_unpadded(
        [Encoding(rng.integers(0, 50, n).astype(np.int32)) for n in lengths]
    )
    words, positions = floats(rng, 50, 64), floats(rng, 33, 64)
    tables = [
        EmbeddingTable(pack(tiles, words, "table"), "input_ids"),
        EmbeddingTable(pack(tiles, positions, "table"), "position_ids"),
    ]
    norm = norm_of(rng, 64, "layer") if with_norm else None
    got = tiles.embed(batch, tables, norm)
    total = oracle.wide(words)[batch.input_ids] + oracle.wide(positions)[batch.position_ids]
    want = ordered(total, None, norm, "pre")
    assert is_within(got.rows, want, 1e-5)
    assert np.abs(tiles.to_host(got) - rounded(want)).max() > 1e-4


# ---- independence


@pytest.mark.parametrize("tokens", [(1, 33, 600), (70, 7)], ids=str)
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(tiles, rng, tokens):
    x, width = bf16(rng, sum(tokens), 64), 32
    first, second = bf16(rng, 96, 64, scale=0.1), bf16(rng, width, 96, scale=0.1)
    norm = norm_of(rng, width, "layer")

    def run(rows):
        tensor = tiles.from_host(x[rows])
        h = tiles.linear(tensor, pack(tiles, first), act="gelu")
        two = tiles.add_norm(tiles.linear(h, pack(tiles, second)), None, norm)
        alone = tiles.add_norm(tiles.linear(h.tokens(), pack(tiles, second)), None, norm)
        return np.hstack([h.rows, two.rows, alone.rows])

    together = run(np.arange(len(x)))
    order = rng.permutation(len(x))
    np.testing.assert_array_equal(run(order), together[order])
    ends = np.cumsum(tokens)
    for start, end in zip(ends - tokens, ends):
        np.testing.assert_array_equal(run(np.arange(start, end)), together[start:end])
