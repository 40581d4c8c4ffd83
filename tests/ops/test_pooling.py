"""Pooling primitives over padded batches, and `pool` over flat tokens in every mode."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import DriverError, Encoding, ShapeError
from drivers.types import PoolMode
from tests import oracle
from tests.ops.contract import check_op

MODES = get_args(PoolMode)
SHAPES = [(1, 1, 1), (3, 7, 31), (2, 33, 1025), (7, 65, 5)]  # B, S, E


def ragged_mask(rng, batch, seq):
    lengths = rng.integers(1, seq + 1, batch)
    return (np.arange(seq) < lengths[:, None]).astype(np.float32), lengths


def flat(hidden, lengths):
    return np.concatenate([row[:length] for row, length in zip(hidden, lengths)])


def batch_of(driver, lengths, skips=None):
    skips = [0] * len(lengths) if skips is None else skips
    rows = [Encoding(np.ones(n, np.int32), pool_skip=skip) for n, skip in zip(lengths, skips)]
    return driver.prepare_batch_unpadded(rows)


def pool_budget(x, want, longest):
    """A mean of `longest` products; mean_sqrt_len is a mean scaled up by at most the root."""
    size = float(np.abs(oracle.wide(x)).max()) * max(1.0, float(np.abs(want).max()))
    return oracle.error_budget(want, np.float32, terms=longest + 4, scale=size)


@pytest.mark.parametrize("shape", SHAPES)
def test_cls_pool_is_the_first_token_in_float32(driver, rng, dtype, shape):
    hidden = rng.standard_normal(shape).astype(dtype)
    check_op(driver, "cls_pool", [hidden], oracle.wide(hidden[:, 0]), 0.0, dtype=np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_mean_pool_matches_oracle(driver, rng, dtype, shape):
    hidden = rng.standard_normal(shape).astype(dtype)
    mask, lengths = ragged_mask(rng, *shape[:2])
    want = oracle.pool(flat(hidden, lengths), lengths, "mean")
    budget = oracle.error_budget(want, np.float32, terms=shape[1] + 2, scale=np.abs(hidden).max())
    check_op(driver, "mean_pool", [hidden, mask], want, budget, dtype=np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_mean_pool_weighs_by_the_mask(driver, rng, dtype, shape):
    hidden = rng.standard_normal(shape).astype(dtype)
    mask, lengths = ragged_mask(rng, *shape[:2])
    mask *= np.arange(1, shape[1] + 1, dtype=np.float32)
    want = oracle.pool(flat(hidden, lengths), lengths, "weighted_mean")
    budget = oracle.error_budget(want, np.float32, terms=shape[1] + 2, scale=np.abs(hidden).max())
    check_op(driver, "mean_pool", [hidden, mask], want, budget, dtype=np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_max_pool_matches_oracle(driver, rng, dtype, shape):
    hidden = rng.standard_normal(shape).astype(dtype) - 9  # below zero: padding would win
    mask, lengths = ragged_mask(rng, *shape[:2])
    want = oracle.pool(flat(hidden, lengths), lengths, "max")
    check_op(driver, "max_pool", [hidden, mask], want, 0.0, dtype=np.float32)


@pytest.mark.parametrize("op", ["mean_pool", "max_pool"])
def test_a_row_without_weight_gives_zeros(driver, rng, dtype, op):
    hidden = rng.standard_normal((3, 7, 31)).astype(dtype)
    mask = np.ones((3, 7), np.float32)
    mask[1] = 0
    got = driver.to_host(getattr(driver, op)(*map(driver.from_host, (hidden.copy(), mask))))
    assert not got[1].any()
    assert got[[0, 2]].all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("op", ["mean_pool", "max_pool"])
def test_poison_under_the_mask_leaves_no_trace_in_the_pool(driver, rng, dtype, op, poison):
    hidden = rng.standard_normal((3, 7, 31)).astype(dtype)
    mask = np.ones((3, 7), np.float32)
    mask[0, 4:], mask[1] = 0, 0
    run = getattr(driver, op)
    clean = driver.to_host(run(*map(driver.from_host, (hidden.copy(), mask)))).copy()
    hidden[mask == 0] = poison
    got = driver.to_host(run(*map(driver.from_host, (hidden.copy(), mask))))
    assert np.array_equal(got, clean)


def test_cls_pool_ignores_poison_behind_the_first_token(driver, dtype):
    hidden = np.full((3, 7, 31), np.nan, dtype)
    hidden[:, 0] = 2
    assert (driver.to_host(driver.cls_pool(driver.from_host(hidden))) == 2).all()


def test_num_20_the_mean_of_4096_ones_is_one(driver, dtype):
    """A float16 sum of ones stops at 2048."""
    hidden = driver.from_host(np.ones((2, 4096, 7), dtype))
    mask = driver.from_host(np.ones((2, 4096), np.float32))
    assert (driver.to_host(driver.mean_pool(hidden, mask)) == 1).all()


@pytest.mark.parametrize("value", [0.1, 300, 65504])
def test_num_20_the_mean_of_4096_identical_tokens_is_that_token(driver, dtype, value):
    hidden = np.full((1, 4096, 7), value, dtype)
    want = oracle.wide(hidden[:, 0])
    # equal summands round alike: their errors add up instead of walking, so n^2 in place of n
    budget = oracle.error_budget(want, np.float32, terms=4096**2)
    mask = np.ones((1, 4096), np.float32)
    got = driver.mean_pool(driver.from_host(hidden), driver.from_host(mask))
    assert oracle.max_error(driver, got, want) <= budget
    for mode in ("mean", "weighted_mean", "max", "cls", "last"):
        pooled = driver.pool(driver.from_host(hidden[0]), batch_of(driver, [4096]), [mode])
        assert oracle.max_difference(pooled, want) <= budget, mode


# ---- the forward operation


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [(1,), (7, 1, 33), (31, 32, 33, 1, 2), (65, 5)])
def test_pool_matches_oracle(driver, rng, dtype, mode, lengths):
    x = rng.standard_normal((sum(lengths), 31)).astype(dtype)
    got = driver.pool(driver.from_host(x.copy()), batch_of(driver, lengths), [mode])
    want = oracle.pool(x, lengths, mode)
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.float32
    assert oracle.max_difference(got, want) <= pool_budget(x, want, max(lengths))


@pytest.mark.parametrize("mode", MODES)
def test_pool_leaves_the_skipped_tokens_out(driver, rng, dtype, mode):
    lengths, skips = (7, 33, 5, 1), (3, 0, 4, 0)
    x = rng.standard_normal((sum(lengths), 33)).astype(dtype)
    want = oracle.pool(x, lengths, mode, skips)
    starts = np.cumsum((0, *lengths[:-1]))
    for start, skip in zip(starts, skips):
        x[start : start + skip] = 1000  # loud, but left out
    got = driver.pool(driver.from_host(x.copy()), batch_of(driver, lengths, skips), [mode])
    assert oracle.max_difference(got, want) <= pool_budget(want, want, max(lengths))


def test_weighted_mean_counts_the_skipped_positions(driver):
    x = np.array([[100.0], [1.0], [2.0]], np.float32)
    got = driver.pool(driver.from_host(x), batch_of(driver, [3], [1]), ["weighted_mean"])
    assert got.item() == pytest.approx((2 * 1 + 3 * 2) / (2 + 3), rel=1e-6)


def test_mean_sqrt_len_divides_by_the_root_of_the_tokens_that_count(driver):
    x = np.array([[100.0], [1.0], [2.0], [3.0], [4.0]], np.float32)
    got = driver.pool(driver.from_host(x), batch_of(driver, [5], [1]), ["mean_sqrt_len"])
    assert got.item() == pytest.approx(10 / 2, rel=1e-6)


@pytest.mark.parametrize(
    "modes", [["cls", "mean"], ["max", "mean", "last"], list(MODES), ["mean", "mean"]]
)
def test_several_modes_stand_side_by_side_in_the_order_asked(driver, rng, dtype, modes):
    lengths = (7, 1, 33)
    x = rng.standard_normal((sum(lengths), 31)).astype(dtype)
    batch = batch_of(driver, lengths, (2, 0, 5))
    got = driver.pool(driver.from_host(x.copy()), batch, modes)
    columns = [driver.pool(driver.from_host(x.copy()), batch, [mode]) for mode in modes]
    assert got.shape == (3, len(modes) * 31)
    assert np.array_equal(got, np.concatenate(columns, axis=1))


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.integers(1, 33).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 2**16),
)
def test_pool_of_any_ragged_batch_matches_oracle_in_every_mode(driver, rows, seed):
    lengths, skips = zip(*rows)
    x = np.random.default_rng(seed).standard_normal((sum(lengths), 7)).astype(np.float32)
    got = driver.pool(driver.from_host(x.copy()), batch_of(driver, lengths, skips), list(MODES))
    for mode, part in zip(MODES, np.split(got, len(MODES), axis=1)):
        want = oracle.pool(x, lengths, mode, skips)
        assert oracle.max_difference(part, want) <= pool_budget(x, want, max(lengths)), mode


@pytest.mark.parametrize("mode", MODES)
def test_a_pooled_row_does_not_see_its_neighbours(driver, rng, dtype, mode):
    lengths = (7, 33, 5)
    x = rng.standard_normal((sum(lengths), 31)).astype(dtype)
    clean = driver.pool(driver.from_host(x.copy()), batch_of(driver, lengths), [mode])
    x[7:40] = np.nan
    got = driver.pool(driver.from_host(x.copy()), batch_of(driver, lengths), [mode])
    assert np.array_equal(got[[0, 2]], clean[[0, 2]])
    assert np.isnan(got[1]).all()


def test_pool_refuses_no_modes_padded_batches_and_foreign_tokens(any_driver):
    batch = batch_of(any_driver, [2, 3])
    with pytest.raises(ShapeError, match="pool: no modes"):
        any_driver.pool(any_driver.alloc_zeros((5, 7)), batch, [])
    with pytest.raises(ShapeError, match=r"pool: tokens have shape \(6, 7\), wanted \(5, \*\)"):
        any_driver.pool(any_driver.alloc_zeros((6, 7)), batch, ["mean"])
    padded = any_driver.prepare_batch([Encoding(np.ones(2, np.int32))], 5)
    with pytest.raises(ShapeError, match="pool: wanted an unpadded batch"):
        any_driver.pool(any_driver.alloc_zeros((2, 7)), padded, ["mean"])


@pytest.mark.parametrize("modes", [["mean"], ["cls", "max"]])
@pytest.mark.parametrize("dim", [None, 1, 7, 31])
def test_pool_cuts_then_normalizes(driver, rng, dtype, modes, dim):
    lengths = (7, 1, 33)
    x = rng.standard_normal((sum(lengths), 31)).astype(dtype)
    batch = batch_of(driver, lengths)
    plain = driver.pool(driver.from_host(x.copy()), batch, modes)
    cut = driver.pool(driver.from_host(x.copy()), batch, modes, dim=dim)
    assert np.array_equal(cut, plain[:, :dim])
    assert cut.flags.c_contiguous
    unit = driver.pool(driver.from_host(x.copy()), batch, modes, dim=dim, normalize=True)
    assert unit.dtype == np.float32
    assert oracle.max_difference(unit, oracle.l2_normalize(cut)) <= 1e-6


def test_pool_keeps_a_zero_row_zero(driver):
    got = driver.pool(
        driver.alloc_zeros((3, 7)), batch_of(driver, [1, 2]), ["mean"], normalize=True
    )
    assert not got.any()  # a NaN would be true


@pytest.mark.parametrize("dim", [0, -1, 15])
def test_pool_refuses_a_width_it_does_not_have(any_driver, dim):
    x, batch = any_driver.alloc_zeros((5, 7)), batch_of(any_driver, [2, 3])
    with pytest.raises(ShapeError, match=f"pool: dim is {dim}, wanted 1 to 14"):
        any_driver.pool(x, batch, ["cls", "mean"], dim=dim)


def test_pool_names_a_mode_it_does_not_have(any_driver):
    with pytest.raises(DriverError, match="'median'"):
        any_driver.pool(any_driver.alloc_zeros((5, 7)), batch_of(any_driver, [2, 3]), ["median"])
