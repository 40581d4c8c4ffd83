"""NullDriver: hand-counted FLOPs, bytes that come back, and calls by name."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from drivers import Encoding, NullDriver
from drivers.types import EmbeddingTable, NormWeights, Rope


@pytest.fixture
def null():
    return NullDriver()


def batch_of(driver, lengths):
    return driver.prepare_batch_unpadded([Encoding(np.ones(n, np.int32)) for n in lengths])


def test_gemm_counts_two_operations_per_multiply_add(null):
    null.gemm(null.alloc_zeros((7, 31)), null.alloc_zeros((31, 5)))
    assert null.tally.flops_total == 2 * 7 * 31 * 5
    null.gemm(null.alloc_zeros((7, 31)), null.alloc_zeros((5, 31)), transpose_b=True)
    assert null.tally.flops_total == 2 * (2 * 7 * 31 * 5)


def test_gemm_batched_counts_every_group(null):
    null.gemm_batched(null.alloc_zeros((3, 7, 31)), null.alloc_zeros((3, 31, 5)))
    assert null.tally.flops_total == 3 * 2 * 7 * 31 * 5


def test_element_wise_work_is_not_counted(null):
    x, row = null.alloc_zeros((7, 31)), null.alloc_zeros((31,))
    null.gelu(null.add_bias(x, row))
    null.layer_norm(x, row, row, eps=1e-5)
    assert null.tally.flops_total == 0


def test_flops_of_linear_and_attention_equal_the_hand_count(null):
    """S = 33 for three ragged rows: attention pays for B * S * S."""
    lengths, hidden, heads = (7, 1, 33), 30, 5
    batch = batch_of(null, lengths)
    x = null.alloc_zeros((41, hidden))
    qkv = null.linear(x, null.alloc_zeros((90, hidden)), null.alloc_zeros((90,)))
    assert null.tally.flops_total == 2 * 41 * 30 * 90
    null.attention(qkv, batch, num_heads=heads)
    scores = 2 * 3 * heads * 33 * 33 * (hidden // heads)
    assert null.tally.flops_total == 2 * 41 * 30 * 90 + 2 * scores


def encoder(driver, tokens, hidden, inner, heads, layers, vocabulary=1000):
    """A forward pass of MiniLM's shape over one sequence."""

    def weight(*shape):
        role = "vector" if len(shape) == 1 else "linear"
        return driver.pack(np.zeros(shape, np.float32), role, np.float32)

    batch = batch_of(driver, [tokens])
    norm = NormWeights(weight(hidden), weight(hidden), eps=1e-12)
    tables = [
        EmbeddingTable(weight(vocabulary, hidden), "input_ids"),
        EmbeddingTable(weight(tokens, hidden), "position_ids"),
    ]
    qkv, attn_out = weight(3 * hidden, hidden), weight(hidden, hidden)
    mlp_in, mlp_out = weight(inner, hidden), weight(hidden, inner)
    b_qkv, b_hidden, b_inner = weight(3 * hidden), weight(hidden), weight(inner)
    x = driver.embed(batch, tables, norm)
    for _ in range(layers):
        context = driver.attention(driver.linear(x, qkv, b_qkv), batch, num_heads=heads)
        x = driver.add_norm(driver.linear(context, attn_out, b_hidden, residual=x), None, norm)
        inside = driver.linear(x, mlp_in, b_inner, act="gelu")
        x = driver.add_norm(driver.linear(inside, mlp_out, b_hidden, residual=x), None, norm)
    return driver.pool(x, batch, ["mean"])


def test_flops_of_the_minilm_shape_equal_the_hand_count(null):
    tokens, hidden, inner = 512, 384, 1536
    got = encoder(null, tokens, hidden, inner, heads=12, layers=6)
    products = 2 * tokens * hidden * (3 * hidden + hidden + 2 * inner)
    attention = 4 * tokens * tokens * hidden
    assert null.tally.flops_total == 6 * (products + attention) == 13_287_555_072
    assert got.shape == (1, 384)
    assert not got.any()
    calls = null.tally.calls_total
    assert calls["gemm"] == 4 * 6
    assert calls["gemm_batched"] == 2 * 6
    assert calls["fused_bias_gelu"] == 6
    assert calls["fused_bias_residual"] == 2 * 6
    assert calls["layer_norm"] == 1 + 2 * 6
    assert calls["fused_scale_mask_softmax"] == 6
    assert calls["mean_pool"] == 1


def test_flops_of_the_bge_base_shape_equal_the_hand_count(null):
    """12 layers of 768 with 3072 inside, 12 heads, 512 tokens."""
    encoder(null, tokens=512, hidden=768, inner=3072, heads=12, layers=12)
    assert null.tally.flops_total == 12 * (7_247_757_312 + 805_306_368) == 96_636_764_160


MODERN = {"hidden": 768, "inner": 1152, "heads": 12, "layers": 22, "reach": 64}


def modern_encoder(driver, tokens, hidden, inner, heads, layers, reach):
    """A forward pass of ModernBERT's shape: every third layer global, the others windowed."""
    half = hidden // heads // 2
    batch = batch_of(driver, [tokens])
    row = driver.alloc_zeros((hidden,))
    norm = NormWeights(row, None, eps=1e-5)
    qkv, attn_out = driver.alloc_zeros((3 * hidden, hidden)), driver.alloc_zeros((hidden, hidden))
    mlp_in = driver.alloc_zeros((2 * inner, hidden))
    mlp_out = driver.alloc_zeros((hidden, inner))
    rope = Rope(driver.alloc_zeros((tokens, half)), driver.alloc_zeros((tokens, half)))
    table = EmbeddingTable(driver.alloc_zeros((1000, hidden)), "input_ids")
    x = driver.embed(batch, [table], norm)
    for layer in range(layers):
        window = None if layer % 3 == 0 else reach
        context = driver.attention(
            driver.linear(driver.add_norm(x, None, norm), qkv),
            batch,
            num_heads=heads,
            rope=rope,
            window_left=window,
            window_right=window,
        )
        x = driver.linear(context, attn_out, residual=x)
        inside = driver.gated_linear(driver.add_norm(x, None, norm), mlp_in, act="gelu")
        x = driver.linear(inside, mlp_out, residual=x)
    return driver.pool(driver.add_norm(x, None, norm), batch, ["mean"], normalize=True)


@pytest.mark.parametrize(
    ("tokens", "hand_count"),
    [
        # a layer's products: 2 T E (3 E + E + 2 F + F) = 10,027,008 T, in 22 layers
        # attention: 4 T T E in the 8 global layers, 4 T 129 E in the 14 local ones
        (512, 112_944_218_112 + 6_442_450_944 + 2_840_592_384),
        (1024, 225_888_436_224 + 25_769_803_776 + 5_681_184_768),
        # in 128 tokens no band of 129 is saved: 4 T T E in all 22
        (128, 28_236_054_528 + 1_107_296_256),
    ],
)
def test_flops_of_the_modernbert_base_shape_equal_the_hand_count(null, tokens, hand_count):
    got = modern_encoder(null, tokens, **MODERN)
    assert got.shape == (1, 768)
    assert null.tally.flops_total == hand_count
    assert null.tally.calls_total["banded_qk"] == (14 if tokens > 128 else 0)
    assert null.tally.calls_total["apply_rope"] == 2 * 22
    assert null.tally.calls_total["fused_split_gate"] == 22


def test_flops_of_grouped_attention_count_every_query_head(null):
    qkv = null.alloc_zeros((33, (16 + 2 * 8) * 128))
    null.attention(qkv, batch_of(null, [33]), num_heads=16, kv_heads=8, causal=True)
    assert null.tally.flops_total == 4 * 16 * 33 * 33 * 128


@pytest.mark.parametrize("order", ["pre", "sandwich"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_each_kind_and_order_keep_shape_and_dtype(null, kind, order):
    x, row = null.alloc_zeros((7, 31), np.float16), null.alloc_zeros((31,))
    norm = NormWeights(row, None, 1e-5, kind=kind)
    for residual in (None, x):
        got = null.add_norm(x, residual, norm, order=order)
        assert (got.shape, got.dtype) == ((7, 31), np.float16)


def test_banded_products_count_the_band(null):
    q, k = null.alloc_zeros((6, 33, 8)), null.alloc_zeros((2, 33, 8))
    scores = null.banded_qk(q, k, window=5)
    assert null.tally.flops_total == 2 * 6 * 33 * 5 * 8
    null.banded_sv(scores, k)
    assert null.tally.flops_total == 2 * (2 * 6 * 33 * 5 * 8)


def test_bytes_of_a_finished_pass_come_back(null):
    encoder(null, tokens=31, hidden=30, inner=33, heads=5, layers=2)
    gc.collect()
    assert null.tally.live_bytes == 0
    assert null.tally.peak_bytes > 1000 * 30 * 4  # at least the word table


def test_live_and_peak_bytes_follow_the_tensors(null):
    first = null.alloc_zeros((7, 31), np.float32)
    assert null.tally.live_bytes == first.nbytes == 7 * 31 * 4
    second = null.clone_tensor(first)
    third = null.alloc_zeros((5,), np.float16)
    assert third.nbytes == 10
    assert null.tally.live_bytes == null.tally.peak_bytes == 2 * 7 * 31 * 4 + 10
    del second
    assert null.tally.live_bytes == 7 * 31 * 4 + 10
    assert null.tally.peak_bytes == 2 * 7 * 31 * 4 + 10
    del first, third
    assert null.tally.live_bytes == 0


def test_out_takes_no_new_bytes(null):
    x, row = null.alloc_zeros((7, 31)), null.alloc_zeros((31,))
    before = null.tally.peak_bytes
    assert null.add_bias(x, row, out=x) is x
    assert null.layer_norm(x, row, row, eps=1e-5, out=x) is x
    assert null.tally.peak_bytes == before


def test_calls_are_counted_by_name(null):
    null.begin_batch()
    x = null.from_host(np.zeros((2, 3), np.float32))
    null.gelu(null.residual_add(x, x))
    null.gelu(x)
    null.to_host(x)
    null.end_batch()
    assert dict(null.tally.calls_total) == {
        "begin_batch": 1,
        "from_host": 1,
        "residual_add": 1,
        "gelu": 2,
        "to_host": 1,
        "end_batch": 1,
    }


def test_to_host_gives_zeros_of_the_shape_and_dtype(null):
    got = null.to_host(null.from_host(np.ones((2, 3), np.float16)))
    assert got.dtype == np.float16
    assert got.shape == (2, 3)
    assert not got.any()


def test_a_clone_counts_for_itself(null):
    null.alloc_zeros((7, 31))
    twin = null.new_for_clone()
    twin.gemm(twin.alloc_zeros((1, 2)), twin.alloc_zeros((2, 3)))
    assert twin.tally.flops_total == 12
    assert null.tally.flops_total == 0
    assert twin.tally.calls_total["alloc_zeros"] == 2
