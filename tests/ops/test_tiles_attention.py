"""Attention in bfloat16 on emulated tiles, against float64 and the roundings of its weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers import open_driver
from drivers.dtypes import BFLOAT16
from drivers.types import QkNorm, Rope
from tests import oracle
from tests.ops.tile_cases import (
    ROUNDING,
    WEIGHT_ERROR,
    batch_of,
    bf16,
    floats,
    is_within,
    pack,
    rounded,
)
from tests.tiles import TILE_SETS

pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")


@pytest.fixture(scope="module", params=TILE_SETS)
def tiles(request):
    """One driver for all, which must have run everything on tiles in the end."""
    driver = open_driver(f"cpu:{request.param}")
    yield driver
    assert not driver.composed_calls


def attend(driver, qkv, lengths, **options):
    got = driver.attention(driver.from_host(qkv.copy()), batch_of(driver, lengths), **options)
    assert got.dtype == BFLOAT16
    return driver.to_host(got)


def oracle_and_budget(qkv, lengths, logit=1e-5, **options):
    """The answer, and what two roundings of each weight and one of the answer may cost.

    logit: what a scaled score may err by.
    """
    qkv = np.asarray(qkv).astype(np.float64)
    heads, kv_heads = options["num_heads"], options.get("kv_heads") or options["num_heads"]
    first_value = qkv.shape[1] * (heads + kv_heads) // (heads + 2 * kv_heads)
    want = oracle.attention(qkv, lengths, **options)
    sizes = qkv.copy()
    sizes[:, first_value:] = np.abs(sizes[:, first_value:])
    reach = oracle.attention(sizes, lengths, **options)  # sum of weight * |value|
    weight = 2 * (ROUNDING + WEIGHT_ERROR) + np.expm1(2 * logit)
    return want, weight * reach + ROUNDING * np.abs(want) + 1e-6


def check(driver, qkv, lengths, logit=1e-5, **options):
    want, budget = oracle_and_budget(qkv, lengths, logit, **options)
    got = attend(driver, qkv, lengths, **options)
    assert is_within(got, want, budget)
    return got, budget


@pytest.mark.parametrize("dim", [32, 64, 96, 128])
@pytest.mark.parametrize("lengths", [(1,), (7, 1, 33), (70,), (16, 32, 15, 17)])
def test_any_head_size_over_ragged_sequences(tiles, rng, dim, lengths):
    qkv = bf16(rng, sum(lengths), 3 * 2 * dim)
    check(tiles, qkv, lengths, num_heads=2)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    dim=st.sampled_from([32, 64, 96, 128]),
    left=st.none() | st.integers(0, 70),
    right=st.none() | st.integers(0, 70),
    causal=st.booleans(),
    biased=st.booleans(),
    scale=st.sampled_from([None, 1.0, 0.01, 0.0, -0.3]),
    seed=st.integers(0, 2**16),
)
def test_any_window_bias_and_grouping(
    tiles, lengths, heads, dim, left, right, causal, biased, scale, seed
):
    rng = np.random.default_rng(seed)
    num_heads, kv_heads = heads
    qkv = bf16(rng, sum(lengths), (num_heads + 2 * kv_heads) * dim)
    bias = floats(rng, num_heads, 2 * 75 - 1) if biased else None
    check(
        tiles,
        qkv,
        lengths,
        num_heads=num_heads,
        kv_heads=kv_heads,
        head_dim=dim,
        scale=scale,
        window_left=left,
        window_right=right,
        causal=causal,
        position_bias=bias,
    )


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"causal": True}, {}),
        ({"causal": True}, {"window_right": 1}),
        ({}, {"scale": 0.15}),
        ({"window_left": 3, "window_right": 5}, {"window_left": 4, "window_right": 5}),
        ({"window_left": 3, "window_right": 5}, {"window_left": 3, "window_right": 4}),
        ({"window_left": 33}, {"window_left": 32}),
        ({"window_right": 31}, {"window_right": 32}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dim", [32, 96])
def test_a_wrong_variant_is_far_off(tiles, rng, dim, options, wrong):
    lengths = (7, 70)
    qkv = bf16(rng, 77, 3 * 2 * dim)
    got, budget = check(tiles, qkv, lengths, num_heads=2, **options)
    other = oracle.attention(oracle.wide(qkv), lengths, num_heads=2, **wrong)
    assert not is_within(got, other, budget)


def test_a_bias_goes_by_key_less_query_and_by_head(tiles, rng):
    qkv, bias = bf16(rng, 40, 3 * 2 * 32), floats(rng, 2, 2 * 45 - 1)
    got, budget = check(tiles, qkv, (40,), num_heads=2, position_bias=bias)
    for wrong in (bias[:, ::-1], bias[::-1], np.roll(bias, 1, axis=1), 0 * bias):
        other = oracle.attention(oracle.wide(qkv), (40,), num_heads=2, position_bias=wrong)
        assert not is_within(got, other, budget)


@pytest.mark.parametrize(
    ("tokens", "options"),
    [
        (8192, {"window_left": 64, "window_right": 64}),
        (8192, {"window_left": 100, "window_right": 0}),
        (1500, {}),
        (1500, {"causal": True}),
    ],
    ids=str,
)
def test_long_sequences(tiles, rng, tokens, options):
    """Some queries of a long sequence, each against float64 over the keys that it sees."""
    dim = 32
    qkv = bf16(rng, tokens, 3 * dim)
    got = attend(tiles, qkv, (tokens,), num_heads=1, **options)
    q, k, v = np.split(oracle.wide(qkv), 3, axis=1)
    for query in [0, 1, 63, 64, 65, tokens // 2, tokens - 2, tokens - 1]:
        first = max(0, query - options.get("window_left", tokens))
        after = 0 if "causal" in options else options.get("window_right", tokens)
        keys = slice(first, query + after + 1)
        powers = np.exp((k[keys] @ q[query]) * dim**-0.5)
        weights = powers / powers.sum()
        budget = 2 * (ROUNDING + WEIGHT_ERROR) * (weights @ np.abs(v[keys]))
        want = weights @ v[keys]
        assert is_within(got[query], want, budget + ROUNDING * np.abs(want) + 1e-5)


# ---- heads are normed and rotated, then rounded


def prepared(qkv, lengths, heads, kv_heads, dim, rope, qk_norm):
    """qkv with its query and key heads normed, rotated and rounded."""
    out, start = oracle.wide(qkv), 0
    for row, length in enumerate(lengths):
        part = out[start : start + length].reshape(length, -1, dim).transpose(1, 0, 2)
        for head in range(heads + kv_heads):
            x = part[head]
            if qk_norm is not None:
                weight = qk_norm.q_weight if head < heads else qk_norm.k_weight
                x = oracle.rms_norm(x, weight, eps=qk_norm.eps)
            if rope is not None:
                x = oracle.rotate(x, *(t if t.ndim == 2 else t[row] for t in (rope.cos, rope.sin)))
            part[head] = rounded(x)
        start += length
    return out


@pytest.mark.parametrize("tables", ["none", "whole", "part", "each its own"])
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(2, 2, 32), (4, 2, 64), (2, 1, 128)])
def test_heads_are_normed_then_rotated(tiles, rng, heads, kv_heads, dim, with_norm, tables):
    lengths = (7, 33, 18)
    qkv = bf16(rng, sum(lengths), (heads + 2 * kv_heads) * dim)
    pairs = {"part": 12}.get(tables, dim // 2)
    angles = rng.uniform(0, 6, (len(lengths), 40, pairs)).astype(np.float32)
    angles = angles if tables == "each its own" else angles[0]
    rope = None if tables == "none" else Rope(np.cos(angles), np.sin(angles))
    weights = 1 + 0.2 * floats(rng, 2, dim)
    qk_norm = QkNorm(weights[0], weights[1], 1e-6) if with_norm else None
    sizes = {"num_heads": heads, "kv_heads": kv_heads, "head_dim": dim}
    got = attend(tiles, qkv, lengths, **sizes, rope=rope, qk_norm=qk_norm)
    ready = prepared(qkv, lengths, heads, kv_heads, dim, rope, qk_norm)
    # a value near the middle of two bf16 may be rounded either way
    want, budget = oracle_and_budget(ready, lengths, logit=0.01, **sizes)
    assert is_within(got, want, budget)
    if rope is not None or qk_norm is not None:
        assert not is_within(got, oracle.attention(oracle.wide(qkv), lengths, **sizes), budget)


# ---- scores beyond the shift


@pytest.mark.parametrize("dim", [32, 128])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_left": 40}], ids=str)
def test_scores_far_above_those_of_the_first_keys(tiles, rng, dim, options):
    """The shift is that of the first keys: later scores overflow it, and are worked out again."""
    qkv = bf16(rng, 70, 3, 2, dim)
    qkv[:, 0] = np.abs(qkv[:, 0])
    qkv[:40, 1] = -30 * np.abs(qkv[:40, 1])
    qkv[40:, 1] = 30 * np.abs(qkv[40:, 1])
    qkv = qkv.reshape(70, -1)
    want = oracle.attention(oracle.wide(qkv), (70,), num_heads=2, **options)
    got = attend(tiles, qkv, (70,), num_heads=2, **options)
    assert np.isfinite(got).all()
    _, budget = oracle_and_budget(qkv, (70,), num_heads=2, logit=2e-3, **options)
    assert is_within(got, want, budget)


def test_scores_far_below_those_of_the_first_keys(tiles, rng):
    qkv = bf16(rng, 70, 3, 1, 32)
    qkv[:, 0], qkv[:, 1] = np.abs(qkv[:, 0]), 30 * np.abs(qkv[:, 1])
    qkv[32:, 1] *= -1
    check(tiles, qkv.reshape(70, -1), (70,), num_heads=1, logit=2e-3)


def test_a_query_that_may_see_no_key_gives_zeros(tiles, rng):
    """A bias of minus infinity hides a key: of some from all queries, of all from the first."""
    tokens = 40
    bias = rng.standard_normal((2, 2 * tokens - 1)).astype(np.float32)
    bias[0, tokens - 1 :] = -np.inf  # head 0 sees the keys before it, and not itself
    bias[1, : tokens + 33] = -np.inf  # head 1 the keys that come 34 or more after it
    qkv = bf16(rng, tokens, 3 * 2 * 32)
    got = attend(tiles, qkv, (tokens,), num_heads=2, position_bias=bias)
    numpy_driver = open_driver("numpy")
    want = numpy_driver.attention(
        qkv.astype(np.float32), batch_of(numpy_driver, (tokens,)), num_heads=2, position_bias=bias
    )
    assert not got[0, :32].any()
    assert not got[tokens - 34 :, 32:].any()
    assert got[1:, :32].any(axis=1).all()
    assert got[: tokens - 34, 32:].any(axis=1).all()
    assert np.abs(got - want).max() < 0.05


@pytest.mark.parametrize("most", [2**31, 2**62, 2**63 - 1])
def test_a_window_beyond_every_sequence_is_none(tiles, rng, most):
    qkv = bf16(rng, 45, 3 * 2 * 32)
    whole = attend(tiles, qkv, (7, 38), num_heads=2)
    windows = {"window_left": most, "window_right": most}
    np.testing.assert_array_equal(attend(tiles, qkv, (7, 38), num_heads=2, **windows), whole)


def test_a_poisoned_sequence_does_not_reach_its_batch_mates(tiles, rng):
    lengths = (7, 33, 5)
    qkv = bf16(rng, 45, 3 * 2 * 32)
    clean = attend(tiles, qkv, lengths, num_heads=2)
    qkv[7:40] = np.nan
    got = attend(tiles, qkv, lengths, num_heads=2)
    assert np.isnan(got[7:40]).all()
    for rows in (slice(0, 7), slice(40, 45)):
        np.testing.assert_array_equal(got[rows], clean[rows])


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window_left": 9, "window_right": 9}], ids=str
)
@pytest.mark.parametrize("dim", [32, 96])
def test_a_sequence_attends_as_it_does_alone_bit_by_bit(tiles, rng, dim, options):
    lengths = np.array([33, 1, 16, 70, 15])
    qkv = bf16(rng, lengths.sum(), 3 * 2 * dim)
    together = attend(tiles, qkv, lengths, num_heads=2, **options)
    ends = np.cumsum(lengths)
    for start, end in zip(ends - lengths, ends):
        alone = attend(tiles, qkv[start:end], [end - start], num_heads=2, **options)
        np.testing.assert_array_equal(alone, together[start:end])


def test_a_projection_goes_to_heads_without_tokens_between(tiles, rng):
    lengths = (7, 33)
    x, weight = bf16(rng, 40, 64), bf16(rng, 3 * 2 * 64, 64, scale=0.1)
    bias, batch = floats(rng, 3 * 2 * 64), batch_of(tiles, lengths)
    qkv = tiles.linear(tiles.from_host(x), pack(tiles, weight), bias)
    got = tiles.attention(qkv, batch, num_heads=2)
    assert qkv.waits
    forced = tiles.attention(tiles.from_host(qkv.rows.astype(BFLOAT16)), batch, num_heads=2)
    assert not qkv.waits
    again = tiles.attention(qkv, batch, num_heads=2)
    for other in (forced, again):
        np.testing.assert_array_equal(tiles.to_host(got), tiles.to_host(other))
