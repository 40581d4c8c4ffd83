"""Banded attention: the band of the trait's formula, its softmax and its sum, and the window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import ShapeError
from drivers.types import MASK_VALUE
from tests import oracle
from tests.ops.contract import check_op, nans, softmax_budget

BANDS = [
    (1, 1, 1, 1, 1),
    (3, 3, 7, 5, 2),
    (6, 2, 33, 31, 8),
    (4, 1, 65, 7, 9),
    (2, 2, 130, 16, 33),
    (5, 5, 31, 3, 129),
]
"""G, groups of keys, S, D, W: shorter than a band, longer than a block, and between."""


def check_scores(got, want, dtype, budget):
    """Equal where -inf is wanted, near elsewhere: inf - inf is no difference."""
    outside = np.isneginf(want)
    assert got.dtype == dtype
    assert np.array_equal(np.isneginf(got), outside)
    got = np.where(outside, 0, got)
    assert oracle.max_difference(got, np.where(outside, 0, want)) <= budget


@pytest.mark.parametrize(("groups", "keys", "seq", "dim", "window"), BANDS)
def test_banded_qk_matches_oracle(driver, rng, dtype, groups, keys, seq, dim, window):
    q = rng.standard_normal((groups, seq, dim)).astype(dtype)
    k = rng.standard_normal((keys, seq, dim)).astype(dtype)
    want = oracle.banded_qk(q, k, window=window)
    scale = oracle.gemm_scale(q, np.repeat(k, groups // keys, axis=0), transpose_b=True)
    finite = np.where(np.isneginf(want), 0, want)
    budget = oracle.error_budget(finite, dtype, terms=dim, scale=scale)
    for out in (None, nans(driver, want.shape, dtype)):
        got = driver.banded_qk(*map(driver.from_host, (q.copy(), k.copy())), window=window, out=out)
        assert out is None or got is out
        check_scores(driver.to_host(got), want, dtype, budget)


@pytest.mark.parametrize(("groups", "keys", "seq", "dim", "window"), BANDS)
def test_banded_sv_matches_oracle(driver, rng, dtype, groups, keys, seq, dim, window):
    weights = rng.standard_normal((groups, seq, window)).astype(dtype)
    v = rng.standard_normal((keys, seq, dim)).astype(dtype)
    want = oracle.banded_sv(weights, v)
    largest = float(np.abs(oracle.wide(v)).max() * np.abs(oracle.wide(weights)).max())
    budget = oracle.error_budget(want, dtype, terms=window, scale=largest * window**0.5)
    check_op(driver, "banded_sv", [weights, v], want, budget, dtype=dtype)


@pytest.mark.parametrize(("groups", "keys", "seq", "dim", "window"), BANDS)
def test_banded_softmax_matches_oracle(driver, rng, dtype, groups, keys, seq, dim, window):
    scores = (rng.standard_normal((groups, seq, window)) * 4).astype(dtype)
    at = oracle.band_keys(seq, window)
    scores[:, (at < 0) | (at >= seq)] = -np.inf
    lengths = rng.integers(1, seq + 1, keys).tolist()
    for real in (None, lengths):
        want = oracle.banded_softmax(scores, scale=0.3, seq_lengths=real)
        budget = softmax_budget(scores, 0.3, want, dtype)
        check_op(
            driver,
            "banded_softmax",
            [scores],
            want,
            budget,
            dtype=dtype,
            may_alias=[0],
            scale=0.3,
            seq_lengths=real,
        )


@pytest.mark.parametrize("scale", [1.0, 0.0, -0.5])
def test_minus_infinity_is_masked_whatever_the_scale(driver, dtype, scale):
    scores = np.array([[0, -np.inf, 1], [-np.inf, -np.inf, -np.inf]], dtype)
    got = driver.to_host(driver.banded_softmax(driver.from_host(scores.copy()), scale=scale))
    want = oracle.banded_softmax(scores, scale=scale)
    assert got[0, 1] == 0
    assert not got[1].any()
    assert oracle.max_difference(got, want) <= softmax_budget(scores, scale, want, dtype)


def test_scores_of_the_whole_sequence_are_read_with_their_offsets(driver):
    """Row i, column w holds key i - W // 2 + w: -2 .. 1 for W = 4."""
    q = np.ones((1, 5, 1), np.float32)
    k = np.arange(1, 6, dtype=np.float32).reshape(1, 5, 1)
    got = driver.to_host(driver.banded_qk(*map(driver.from_host, (q, k)), window=4))
    no = -np.inf
    assert got[0].tolist() == [
        [no, no, 1, 2],
        [no, 1, 2, 3],
        [1, 2, 3, 4],
        [2, 3, 4, 5],
        [3, 4, 5, no],
    ]


def test_weights_and_values_outside_the_sequence_leave_no_trace(driver, rng, dtype):
    weights = rng.standard_normal((2, 7, 5)).astype(dtype)
    v = driver.from_host(rng.standard_normal((2, 7, 3)).astype(dtype))
    clean = driver.to_host(driver.banded_sv(driver.from_host(weights.copy()), v)).copy()
    at = oracle.band_keys(7, 5)
    weights[:, (at < 0) | (at >= 7)] = np.nan
    got = driver.to_host(driver.banded_sv(driver.from_host(weights), v))
    assert np.array_equal(got, clean)


# ---- the band and the window


def dense_and_banded(driver, rng, lengths, heads, seq, window, band):
    """Attention weights by key, (G, S, S), of the windowed mask and of the band."""
    q, k = (
        rng.standard_normal((len(lengths) * heads, seq, 7)).astype(np.float32) for _ in range(2)
    )
    mask = np.where(np.arange(seq) < np.array(lengths)[:, None], 0, MASK_VALUE).astype(np.float32)
    tensors = [driver.from_host(x) for x in (q, k)]
    scores = driver.gemm_batched(*tensors, transpose_b=True)
    dense = driver.fused_scale_mask_softmax_windowed(
        scores, driver.from_host(mask), num_heads=heads, scale=0.4, window=window
    )
    scores = driver.banded_qk(*tensors, window=band)
    weights = driver.to_host(driver.banded_softmax(scores, scale=0.4, seq_lengths=lengths))
    at = oracle.band_keys(seq, band)
    spread = np.zeros((len(weights), seq, seq))
    query, column = np.nonzero((at >= 0) & (at < seq))
    spread[:, query, at[query, column]] = weights[:, query, column]
    return driver.to_host(dense), spread, (q, k)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    half=st.integers(0, 20),
    heads=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**16),
)
def test_band_w_plus_1_is_window_w_on_every_position_that_exists(
    driver, lengths, half, heads, seed
):
    rng = np.random.default_rng(seed)
    seq, window = max(lengths), 2 * half
    dense, banded, _ = dense_and_banded(driver, rng, lengths, heads, seq, window, window + 1)
    assert np.array_equal(dense > 0, banded > 0)
    assert oracle.max_difference(banded, dense) <= 2e-6


def test_an_odd_window_is_the_even_one_below_it(driver, rng):
    scores = driver.from_host(rng.standard_normal((2, 33, 33)).astype(np.float32))
    mask = driver.alloc_zeros((1, 33))
    options = {"num_heads": 2, "scale": 1.0}
    nine, eight = (
        driver.to_host(
            driver.fused_scale_mask_softmax_windowed(scores, mask, window=window, **options)
        )
        for window in (9, 8)
    )
    assert np.array_equal(nine, eight)


def test_an_even_band_omits_the_right_edge(driver, rng):
    """Band 8 is offsets -4 .. 3; window 8 and band 9 have +4 as well."""
    dense, banded, (q, k) = dense_and_banded(driver, rng, [33], 2, 33, 8, 8)
    offset = np.arange(33) - np.arange(33)[:, None]
    assert np.array_equal(banded[0] > 0, (offset >= -4) & (offset <= 3))
    assert np.array_equal(dense[0] > 0, np.abs(offset) <= 4)
    scores = oracle.gemm(q, k, transpose_b=True)
    want = oracle.masked_softmax(
        scores, np.zeros((1, 33)), num_heads=2, scale=0.4, window_left=4, window_right=3
    )
    assert oracle.max_difference(banded, want) <= 2e-6


@pytest.mark.parametrize(
    ("op", "inputs", "options", "message"),
    [
        ("banded_qk", [(4, 7, 8), (4, 6, 8)], {"window": 3}, r"k has shape \(4, 6, 8\), wanted"),
        ("banded_qk", [(4, 7, 8), (3, 7, 8)], {"window": 3}, "3 key heads do not divide 4 heads"),
        ("banded_qk", [(4, 7, 8), (4, 7, 8)], {"window": 0}, "window is 0, wanted at least 1"),
        ("banded_sv", [(4, 7, 3), (4, 6, 8)], {}, r"v has shape \(4, 6, 8\), wanted"),
        ("banded_sv", [(4, 7, 3), (3, 7, 8)], {}, "3 value heads do not divide 4 heads"),
        ("banded_softmax", [(7,)], {"scale": 1.0}, "at least 2 dimensions"),
        ("banded_softmax", [(7, 3)], {"scale": 1.0, "seq_lengths": [7]}, r"\(7, 3\), wanted"),
        ("banded_softmax", [(4, 7, 3)], {"scale": 1.0, "seq_lengths": [7] * 3}, "3 lengths do not"),
        ("banded_softmax", [(4, 7, 3)], {"scale": 1.0, "seq_lengths": [7, 8]}, "lengths from 7 to"),
    ],
)
def test_what_does_not_fit_is_refused(any_driver, op, inputs, options, message):
    tensors = [any_driver.alloc_zeros(shape) for shape in inputs]
    with pytest.raises(ShapeError, match=f"^{op}: .*{message}"):
        getattr(any_driver, op)(*tensors, **options)
