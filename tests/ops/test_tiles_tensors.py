"""The tensors of the bfloat16 mode: what waits, what is computed once, what goes to float32."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from drivers import DriverError, DtypeError, Encoding, ShapeError, open_driver
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.types import EmbeddingTable, NormWeights
from tests import oracle
from tests.ops.tile_cases import batch_of, bf16, floats, pack
from tests.tiles import TILE_SETS

rayvec_native = pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")


@pytest.fixture(params=TILE_SETS)
def tiles(request):
    return open_driver(f"cpu:{request.param}")


def test_the_sets_with_tiles_have_bfloat16_and_avx512_bf16_takes_it_first():
    for name in rayvec_native.instruction_sets():
        driver = open_driver(f"cpu:{name}")
        has_tiles = name in TILE_SETS
        assert driver.kernels.has_tiles == has_tiles
        want = [FLOAT32, *([BFLOAT16] if has_tiles else []), FLOAT16]
        if name == "avx512_bf16":
            want[:2] = BFLOAT16, FLOAT32
        assert driver.dtypes == driver.new_for_clone().dtypes == tuple(want)


@pytest.mark.parametrize("name", ["numpy", "cpu:portable"])
def test_a_driver_without_tiles_refuses_bfloat16_by_name(name):
    with pytest.raises(DtypeError, match=f"{name}: no storage type bfloat16, only float32"):
        open_driver(name).pack(np.ones((32, 32), np.float32), "linear", BFLOAT16)


def test_float32_is_not_touched_by_the_tiles(tiles, rng):
    x, weight = floats(rng, 5, 64), floats(rng, 32, 64)
    got = tiles.linear(x, tiles.pack(weight, "linear", np.float32))
    assert (type(got), got.dtype) == (np.ndarray, FLOAT32)
    assert np.abs(got - oracle.gemm(x, weight, transpose_b=True)).max() <= 1e-4


# ---- packing


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("role", ["linear", "gated", "table"])
def test_weights_that_are_not_finite_are_refused(tiles, role, value):
    weight = np.ones((64, 32), np.float32)
    weight[33, 5] = value
    with pytest.raises(DriverError, match=r"shape \(64, 32\) has values that are not finite"):
        pack(tiles, weight, role)


def test_a_weight_that_bfloat16_cannot_hold_is_refused(tiles):
    weight = np.ones((64, 32), np.float32)
    weight[33, 5] = -3.4e38
    with pytest.raises(DriverError, match=r"shape \(64, 32\) reaches beyond bfloat16"):
        pack(tiles, weight)


def test_biases_and_norms_stay_float32(tiles, rng):
    vector = floats(rng, 33)
    packed = pack(tiles, vector, "vector")
    assert packed.dtype == FLOAT32
    np.testing.assert_array_equal(packed, vector)
    table = pack(tiles, floats(rng, 9, 33), "table")
    assert (table.shape, table.dtype) == ((9, 33), BFLOAT16)
    assert tiles.to_host(table).dtype == FLOAT32


@pytest.mark.parametrize(("shape", "role"), [((64, 32), "linear"), ((64, 96), "gated")])
def test_packed_bits_are_a_weight_again_without_a_copy(tiles, rng, shape, role):
    packed = pack(tiles, floats(rng, *shape), role)
    bits = tiles.packed_values(packed)
    bits.flags.writeable = False
    again = tiles.new_for_clone().from_packed(bits, shape, role, BFLOAT16)
    assert np.shares_memory(tiles.packed_values(again), bits)
    np.testing.assert_array_equal(tiles.to_host(again), tiles.to_host(packed))
    got = [layer_of(tiles, weight, rng=np.random.default_rng(3)) for weight in (packed, again)]
    np.testing.assert_array_equal(*got)
    for values in (bits[:-1], bits.astype(np.float32), bits.reshape(shape)):
        with pytest.raises(ShapeError, match=r"from_packed: .* wanted uint16"):
            tiles.from_packed(values, shape, role, BFLOAT16)


def layer_of(driver, weight, rng):
    x = driver.from_host(bf16(rng, 5, weight.shape[1]))
    if weight.gated:
        return driver.to_host(driver.gated_linear(x, weight, act="silu"))
    return driver.to_host(driver.linear(x, weight))


def test_an_odd_weight_is_kept_in_the_panels_of_float32(tiles, rng):
    packed = pack(tiles, floats(rng, 65, 33))
    again = tiles.from_packed(tiles.packed_values(packed), (65, 33), "linear", BFLOAT16)
    np.testing.assert_array_equal(tiles.to_host(again), tiles.to_host(packed))
    assert tiles.packed_layout(BFLOAT16) == "bfloat16-tiles-float32-32"
    assert tiles.packed_layout(np.float32) == "float32-32"
    assert tiles.packed_layout(np.float16) is None


# ---- what waits, and is computed once


class Spy:
    """Kernels that count their calls."""

    def __init__(self, kernels):
        self._kernels = kernels
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            return getattr(self._kernels, name)(*arguments)

        return call


@pytest.fixture
def spied(tiles):
    tiles._tiles.space.kernels = Spy(tiles.kernels)
    return tiles


def layer(driver, rng, out, width, role="linear"):
    return pack(driver, bf16(rng, out, width, scale=0.1), role), floats(rng, out)


def test_a_layer_is_computed_once_and_only_when_asked_for(spied, rng):
    calls = spied._tiles.space.kernels.calls
    weight, bias = layer(spied, rng, 96, 32)
    calls.clear()
    product = spied.linear(spied.from_host(bf16(rng, 5, 32)), weight, bias, act="gelu")
    assert (product.shape, product.dtype, calls) == ((5, 96), BFLOAT16, [])
    first, second = spied.to_host(product), product.rows
    assert first is second
    assert product.tiles is product.tiles
    assert calls == ["to_tiles", "linear_tiles", "to_rows"]


def test_one_kernel_does_two_layers_with_what_follows_them(spied, rng):
    calls = spied._tiles.space.kernels.calls
    first, second = layer(spied, rng, 192, 32, "gated"), layer(spied, rng, 32, 96)
    norm = NormWeights(*floats(rng, 2, 32), eps=1e-5)
    x = spied.from_host(bf16(rng, 5, 32))
    inner = spied.gated_linear(x, *first, act="silu")
    calls.clear()
    spied.linear(inner, *second, residual=x)
    assert calls == ["to_tiles", "ffn"]
    spied.add_norm(spied.linear(inner, *second), x, norm)
    assert calls == ["to_tiles", "ffn", "ffn"]
    spied.to_host(inner)
    spied.add_norm(spied.linear(inner, *second), x, norm)
    assert calls[3:] == ["linear_tiles", "to_rows", "linear_rows"]
    assert dict(spied.native_calls) == {"gated_linear": 1, "linear": 3, "add_norm": 2}
    assert not spied.composed_calls


def test_layers_nest_without_an_activation_between(tiles, rng):
    weights = [layer(tiles, rng, 64, 64) for _ in range(3)]
    x = bf16(rng, 5, 64)
    y, want = tiles.from_host(x), oracle.wide(x)
    for weight, bias in weights:
        y = tiles.linear(y, weight, bias)
        want = want @ oracle.wide(tiles.to_host(weight)).T + bias
    assert np.abs(tiles.to_host(y) - want).max() <= 2.0**-6 * np.abs(want).max()


def test_an_activation_may_follow_a_norm_and_a_product_be_a_residual(tiles, rng):
    weight, bias = layer(tiles, rng, 64, 64)
    norm = NormWeights(*floats(rng, 2, 64), eps=1e-5)
    x = tiles.from_host(bf16(rng, 5, 64))
    product = tiles.linear(x, weight, bias, act="relu")
    got = tiles.add_norm(product, tiles.linear(x, weight, bias), norm)
    wide = oracle.wide(tiles.to_host(tiles.linear(x, weight, bias)))
    want = oracle.layer_norm(np.maximum(wide, 0) + wide, norm.weight, norm.bias, eps=1e-5)
    assert np.abs(tiles.to_host(got) - want).max() <= 1e-4


# ---- what goes to float32


def test_a_size_that_no_tile_takes_is_counted_and_logged_and_right(tiles, rng, caplog):
    x, weight, bias = bf16(rng, 7, 33), floats(rng, 65, 33), floats(rng, 65)
    packed = pack(tiles, weight)
    assert packed.dtype == FLOAT32
    with caplog.at_level(logging.INFO, "drivers.cpu"):
        got = [tiles.linear(tiles.from_host(x), packed, bias, act="gelu") for _ in range(2)]
    want = oracle.gelu(oracle.gemm(x, weight, transpose_b=True) + bias)
    assert got[1].dtype == BFLOAT16
    assert np.abs(tiles.to_host(got[1]) - want).max() <= 1e-4
    assert dict(tiles.composed_calls) == {"linear": 2}
    assert [record.getMessage() for record in caplog.records] == [
        f"{tiles.name}: no kernel for this linear; it is computed in float32"
    ]


def test_odd_widths_pass_through_every_operation(tiles, rng):
    """A width of 33 and heads of 11: everything in float32, rounded nowhere."""
    lengths, width = (7, 1, 20), 33
    encodings = [Encoding(rng.integers(0, 50, n).astype(np.int32)) for n in lengths]
    batch = tiles.prepare_batch_unpadded(encodings)
    words, weight = floats(rng, 50, width), floats(rng, 3 * width, width) / 6
    gate = floats(rng, 2 * 35, width) / 6
    norm = NormWeights(*floats(rng, 2, width), eps=1e-5)
    x = tiles.embed(batch, [EmbeddingTable(pack(tiles, words, "table"), "input_ids")], norm)
    ctx = tiles.attention(tiles.linear(x, pack(tiles, weight)), batch, num_heads=3)
    h = tiles.gated_linear(ctx, pack(tiles, gate, "gated"), act="silu")
    y = tiles.add_norm(ctx, x, norm)
    want = oracle.layer_norm(words[batch.input_ids], norm.weight, norm.bias, eps=1e-5)
    context = oracle.attention(want @ oracle.wide(weight).T, lengths, num_heads=3)
    halves = np.split(context @ oracle.wide(gate).T, 2, axis=1)
    assert np.abs(tiles.to_host(h) - oracle.gated(*halves, "silu")).max() <= 1e-4
    last = oracle.layer_norm(context + want, norm.weight, norm.bias, eps=1e-5)
    assert np.abs(tiles.to_host(y) - last).max() <= 1e-4
    assert np.abs(tiles.pool(y, batch, ["cls"]) - oracle.pool(last, lengths, "cls")).max() <= 1e-4
    assert sorted(tiles.composed_calls) == [
        "add_norm",
        "attention",
        "embed",
        "gated_linear",
        "linear",
    ]


def test_a_head_size_that_no_tile_takes_comes_after_a_product_that_one_does(tiles, rng):
    x, weight = bf16(rng, 20, 32), bf16(rng, 3 * 2 * 48, 32, scale=0.2)
    qkv = tiles.linear(tiles.from_host(x), pack(tiles, weight))
    got = tiles.attention(qkv, batch_of(tiles, (13, 7)), num_heads=2)
    want = oracle.attention(tiles.to_host(qkv), (13, 7), num_heads=2)
    assert np.abs(tiles.to_host(got) - want).max() <= 1e-5
    assert dict(tiles.composed_calls) == {"attention": 1}
    assert tiles.native_calls["linear"] == 1


def test_an_activation_with_a_residual_is_computed_in_float32(tiles, rng):
    weight, bias = layer(tiles, rng, 32, 32)
    x = bf16(rng, 5, 32)
    tensor = tiles.from_host(x)
    got = tiles.to_host(tiles.linear(tensor, weight, bias, act="relu", residual=tensor))
    y = oracle.gemm(x, tiles.to_host(weight), transpose_b=True) + bias
    assert np.abs(got - (np.maximum(y, 0) + oracle.wide(x))).max() <= 1e-4
    assert tiles.composed_calls["linear"]


# ---- refusals


def test_what_does_not_fit_is_refused_as_in_float32(tiles):
    x = tiles.from_host(np.ones((2, 32), BFLOAT16))
    weight = pack(tiles, np.ones((64, 32), np.float32))
    with pytest.raises(ShapeError, match=r"inner sizes differ: a is \(2, 64\)"):
        tiles.linear(tiles.from_host(np.ones((2, 64), BFLOAT16)), weight)
    with pytest.raises(ShapeError, match=r"bias has shape \(32,\), wanted \(64\)"):
        tiles.linear(x, weight, np.ones(32, np.float32))
    with pytest.raises(ShapeError, match=r"residual has shape \(2, 32\), wanted \(2, 64\)"):
        tiles.linear(x, weight, residual=x)
    with pytest.raises(DriverError, match="unknown activation 'swish'"):
        tiles.linear(x, weight, act="swish")
    norm = NormWeights(np.ones(32, np.float32), None, 1e-5)
    with pytest.raises(DriverError, match="unknown order 'post'"):
        tiles.add_norm(x, x, norm, order="post")
    with pytest.raises(DriverError, match="unknown norm 'batch'"):
        tiles.add_norm(x, x, NormWeights(norm.weight, None, 1e-5, kind="batch"))
    with pytest.raises(ShapeError, match=r"tokens have shape \(2, 32\), wanted \(5, "):
        tiles.attention(x, batch_of(tiles, (5,)), num_heads=1)
    with pytest.raises(DtypeError, match=r"from_host: bfloat16 of shape \(1, 1, 1\)"):
        tiles.from_host(np.ones((1, 1, 1), BFLOAT16))


@pytest.mark.parametrize("id_", [-1, 50])
def test_an_id_outside_its_table_is_refused(tiles, rng, id_):
    batch = tiles.prepare_batch_unpadded([Encoding(np.array([3, id_], np.int32))])
    table = EmbeddingTable(pack(tiles, floats(rng, 50, 32), "table"), "input_ids")
    with pytest.raises(ShapeError, match=f"id {id_} at position 1 is outside a table of 50 rows"):
        tiles.embed(batch, [table])


def test_a_primitive_refuses_tokens_by_dtype(tiles):
    x = tiles.from_host(np.ones((2, 32), BFLOAT16))
    with pytest.raises(DtypeError, match="bfloat16"):
        tiles.layer_norm(x, np.ones(32, np.float32), None, eps=1e-5)


def test_kernels_without_tiles_say_so():
    kernels = rayvec_native.kernels("portable")
    with pytest.raises(ValueError, match="no tiles"):
        kernels.to_tiles(np.ones((2, 32), np.float32), np.zeros(32 * 32, np.uint16))


def test_a_kernel_refuses_arrays_that_do_not_fit(tiles):
    kernels, act = tiles.kernels, rayvec_native.Activation.none
    x, packed = np.zeros(32 * 64, np.uint16), np.zeros(64 * 64, np.uint16)
    out = np.zeros(32 * 64, np.uint16)
    kernels.linear_tiles(2, x, packed, None, act, False, out)
    for tokens, given, into in [(0, x, out), (33, x, out), (2, x[:-1], out), (2, x, out[:-1])]:
        with pytest.raises(ValueError, match="wanted|do not fit|another size"):
            kernels.linear_tiles(tokens, given, packed, None, act, False, into)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.linear_tiles(2, x, packed[:-64], None, act, False, out)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.linear_tiles(2, x, packed, np.zeros(63, np.float32), act, False, out)
