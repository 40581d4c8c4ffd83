"""The steps of causal attention: its softmax in both forms, split heads, one matrix of a group."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import NullDriver, ShapeError
from drivers.causal_attention import CausalAttention, CausalConfig
from tests import oracle
from tests.ops.contract import check_op, nans

SOFTMAXES = ["batched_causal_softmax", "batched_causal_softmax_trueno"]
SIZES = [1, 7, 31, 33, 129]
CONFIG = CausalConfig(3, 3, 33)

each_softmax = pytest.mark.parametrize("softmax", SOFTMAXES)


# ---- the softmax


@each_softmax
@pytest.mark.parametrize("seq", SIZES)
@pytest.mark.parametrize("scale", [1.0, 0.3, -0.5])
def test_softmax_matches_the_oracle(driver, rng, dtype, softmax, seq, scale):
    scores = (rng.standard_normal((3, seq, seq)) * 4).astype(dtype)
    want = np.zeros(scores.shape)
    for head, i in np.ndindex(3, seq):
        logits = oracle.wide(scores[head, i, : i + 1]) * scale
        powers = np.exp(logits - logits.max())
        want[head, i, : i + 1] = powers / powers.sum()
    causal = CausalAttention(driver, CONFIG)
    largest = float(np.abs(oracle.wide(scores)).max())
    budget = oracle.error_budget(want, dtype, terms=8 + np.log2(2 * seq), scale=1 + largest)
    for out in (None, nans(driver, scores.shape, dtype)):
        tensor = driver.from_host(scores.copy())
        got = getattr(causal, softmax)(tensor, scale=scale, out=out)
        assert np.array_equal(driver.to_host(tensor), scores)
        assert got.dtype == dtype
        assert oracle.max_error(driver, got, want) <= budget
    in_place = driver.from_host(scores.copy())
    assert getattr(causal, softmax)(in_place, scale=scale, out=in_place) is in_place
    assert np.array_equal(driver.to_host(in_place), driver.to_host(got))


def test_the_vectorised_softmax_equals_the_plain_one_bit_by_bit(driver, rng, dtype):
    scores = rng.standard_normal((5, 33, 33)).astype(dtype)
    causal = CausalAttention(driver, CONFIG)
    plain, fast = (
        driver.to_host(getattr(causal, name)(driver.from_host(scores.copy()))) for name in SOFTMAXES
    )
    assert np.array_equal(plain, fast)


@each_softmax
def test_rows_sum_to_one_and_end_at_the_diagonal(driver, rng, softmax):
    scores = (rng.standard_normal((5, 129, 129)) * 8).astype(np.float32)
    causal = CausalAttention(driver, CONFIG)
    got = driver.to_host(getattr(causal, softmax)(driver.from_host(scores)))
    assert np.abs(oracle.wide(got).sum(axis=-1) - 1).max() <= 1e-6
    assert not np.triu(got, k=1).any()
    assert (got[:, 0, 0] == 1).all()


@each_softmax
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_any_size_stay_finite(driver, rng, dtype, softmax, sign):
    largest = float(np.finfo(dtype).max)
    scores = (sign * largest * rng.random((3, 33, 33))).astype(dtype)
    scores[:, :, ::2] *= -1
    causal = CausalAttention(driver, CONFIG)
    got = driver.to_host(getattr(causal, softmax)(driver.from_host(scores)))
    assert np.isfinite(got).all()
    assert np.abs(oracle.wide(got).sum(axis=-1) - 1).max() <= 33 * np.finfo(dtype).eps


@each_softmax
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_above_the_diagonal_leaves_no_trace(driver, rng, dtype, softmax, poison):
    scores = rng.standard_normal((3, 31, 31)).astype(dtype)
    causal = CausalAttention(driver, CONFIG)
    clean = driver.to_host(getattr(causal, softmax)(driver.from_host(scores.copy())))
    scores[:, np.triu(np.ones((31, 31), bool), k=1)] = poison
    got = driver.to_host(getattr(causal, softmax)(driver.from_host(scores)))
    assert np.array_equal(got, clean)


@each_softmax
@pytest.mark.parametrize("shape", [(7, 7), (3, 7, 8)])
def test_scores_that_are_not_square_matrices_of_heads_are_refused(any_driver, softmax, shape):
    causal = CausalAttention(any_driver, CONFIG)
    with pytest.raises(ShapeError, match="scores has shape"):
        getattr(causal, softmax)(any_driver.alloc_zeros(shape))


# ---- the primitives it brings


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (3, 5), (2, 3), (1, 12)])
def test_split_heads_undoes_attn_reshape(driver, rng, dtype, batch, heads):
    rows = rng.standard_normal((batch, 7, heads * 31)).astype(dtype)
    x = np.concatenate([np.stack(np.split(row, heads, axis=1)) for row in rows])
    check_op(driver, "split_heads", [rows], x, 0.0, dtype=dtype, num_heads=heads)
    joined = driver.attn_reshape(driver.from_host(x.copy()), num_heads=heads)
    assert np.array_equal(driver.to_host(driver.split_heads(joined, num_heads=heads)), x)


def test_a_matrix_of_a_group_is_a_view(driver, rng):
    x = driver.from_host(rng.standard_normal((3, 7, 7)).astype(np.float32))
    before = driver.to_host(x).copy()
    one = driver.matrix_at(x, 1)
    driver.causal_softmax(one, scale=1.0, out=one)
    after = driver.to_host(x)
    assert np.array_equal(after[[0, 2]], before[[0, 2]])
    assert (after[1, 0] == [1, 0, 0, 0, 0, 0, 0]).all()


def test_a_view_takes_no_bytes():
    null = NullDriver()
    x = null.alloc_zeros((3, 7, 7))
    held = null.tally.live_bytes
    one = null.matrix_at(x, 2)
    assert null.tally.live_bytes == null.tally.peak_bytes == held
    del one
    assert null.tally.live_bytes == held


@pytest.mark.parametrize("index", [-1, 3])
def test_a_matrix_outside_the_group_is_refused(any_driver, index):
    with pytest.raises(ShapeError, match=f"matrix_at: no matrix {index} among the 3"):
        any_driver.matrix_at(any_driver.alloc_zeros((3, 7, 31)), index)


def test_the_primitives_refuse_what_does_not_fit(any_driver):
    with pytest.raises(ShapeError, match=r"split_heads: x has shape \(7, 12\)"):
        any_driver.split_heads(any_driver.alloc_zeros((7, 12)), num_heads=3)
    with pytest.raises(ShapeError, match="split_heads: 5 heads do not divide"):
        any_driver.split_heads(any_driver.alloc_zeros((1, 7, 12)), num_heads=5)
    with pytest.raises(ShapeError, match=r"causal_softmax: scores .*wanted \(8, 8\)"):
        any_driver.causal_softmax(any_driver.alloc_zeros((7, 8)), scale=1.0)
    x, out = any_driver.alloc_zeros((3, 7, 7)), any_driver.alloc_zeros((7, 7))
    with pytest.raises(ShapeError, match="causal_softmax: out has shape"):
        any_driver.causal_softmax(x, scale=1.0, out=out)
