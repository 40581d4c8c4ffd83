"""Layer norm, with and without a residual, and the l2 norm; also where float16 would overflow."""

from __future__ import annotations

import numpy as np
import pytest

from drivers.types import NormWeights
from tests import oracle
from tests.ops.contract import DIVIDES_NOTHING, check_op

WIDTHS = [384, 1023, 1025, 4096]


def norm_scale(x, weight, bias, eps):
    """The size of a normalised row's terms: float32 loses 2^-24 of |x| before dividing by std."""
    x = oracle.wide(x)
    largest = np.abs(x).max(axis=-1) / np.sqrt(x.var(axis=-1) + eps)
    return float(largest.max() * np.abs(oracle.wide(weight)).max() + np.abs(bias).max())


def norm_budget(x, weight, bias, eps, dtype):
    """A mean and a variance over the width, then five operations a value."""
    want = oracle.layer_norm(x, weight, bias, eps=eps)
    scale = norm_scale(x, weight, bias, eps)
    return want, oracle.error_budget(want, dtype, terms=x.shape[-1] + 5, scale=scale)


@pytest.mark.parametrize("eps", [1e-12, 1e-5])
@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (5, 384), (64, 768), (2, 7, 33)])
def test_layer_norm_matches_oracle(driver, rng, dtype, shape, eps):
    x, weight, bias = (
        rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:], shape[-1:])
    )
    want, budget = norm_budget(x, weight, bias, eps, dtype)
    inputs = [x, weight, bias]
    check_op(driver, "layer_norm", inputs, want, budget, dtype=dtype, may_alias=[0], eps=eps)


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (5, 384), (64, 768), (2, 7, 33)])
def test_fused_residual_layernorm_matches_oracle(driver, rng, dtype, shape):
    hidden, residual = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[-1:]).astype(dtype) for _ in range(2))
    total = oracle.wide(hidden) + oracle.wide(residual)
    want, budget = norm_budget(total, weight, bias, 1e-5, dtype)
    inputs = [hidden, residual, weight, bias]
    op = "fused_residual_layernorm"
    check_op(driver, op, inputs, want, budget, dtype=dtype, may_alias=[0, 1], eps=1e-5)


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (2, 7, 33)])
def test_a_norm_without_bias_adds_nothing(driver, rng, dtype, shape):
    x, residual = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    weight = rng.standard_normal(shape[-1:]).astype(dtype)
    zero = np.zeros(shape[-1:], dtype)
    up = driver.from_host
    without = driver.layer_norm(up(x.copy()), up(weight), None, eps=1e-5)
    with_zero = driver.layer_norm(up(x.copy()), up(weight), up(zero), eps=1e-5)
    assert np.array_equal(driver.to_host(without), driver.to_host(with_zero))
    pair = up(x.copy()), up(residual.copy()), up(weight)
    without = driver.fused_residual_layernorm(*pair, None, eps=1e-5)
    with_zero = driver.fused_residual_layernorm(*pair, up(zero), eps=1e-5)
    assert np.array_equal(driver.to_host(without), driver.to_host(with_zero))


def rms_budget(x, weight, eps, dtype):
    """A mean square over the width, then four operations a value."""
    want = oracle.rms_norm(x, weight, eps=eps)
    scale = float(np.abs(want).max(initial=0))
    return want, oracle.error_budget(want, dtype, terms=x.shape[-1] + 4, scale=scale)


@pytest.mark.parametrize("eps", [1e-12, 1e-6])
@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (5, 384), (2, 7, 33)])
def test_rms_norm_matches_oracle(driver, rng, dtype, shape, eps):
    x = (rng.standard_normal(shape) + 0.5).astype(dtype)  # a mean that must not be taken off
    weight = rng.standard_normal(shape[-1:]).astype(dtype)
    want, budget = rms_budget(x, weight, eps, dtype)
    check_op(driver, "rms_norm", [x, weight], want, budget, dtype=dtype, may_alias=[0], eps=eps)


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (5, 384), (2, 7, 33)])
def test_fused_residual_rmsnorm_matches_oracle(driver, rng, dtype, shape):
    hidden, residual = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    weight = rng.standard_normal(shape[-1:]).astype(dtype)
    total = oracle.wide(hidden) + oracle.wide(residual)
    want, budget = rms_budget(total, weight, 1e-6, dtype)
    inputs, op = [hidden, residual, weight], "fused_residual_rmsnorm"
    check_op(driver, op, inputs, want, budget, dtype=dtype, may_alias=[0, 1], eps=1e-6)


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_the_eps_of_an_rms_norm_is_inside_the_root(driver, dtype, eps):
    x = np.tile(np.array([1, -1], np.float32) * np.sqrt(eps), (3, 17)).astype(dtype)
    weight = np.ones(34, dtype)
    want, budget = rms_budget(x, weight, eps, dtype)
    got = driver.rms_norm(*map(driver.from_host, (x.copy(), weight)), eps=eps)
    assert oracle.max_error(driver, got, want) <= budget


@pytest.mark.parametrize("width", WIDTHS)
def test_num_20_rms_norm_where_squares_and_sums_overflow_float16(driver, rng, dtype, width):
    x = num_20_rows(width, rng).astype(dtype)
    weight = rng.standard_normal(width).astype(dtype)
    want, budget = rms_budget(x, weight, 1e-6, dtype)
    got = driver.rms_norm(*map(driver.from_host, (x.copy(), weight)), eps=1e-6)
    assert oracle.max_error(driver, got, want) <= budget
    assert not driver.to_host(got)[2].any()  # a row of zeros
    signs = rng.choice([-1.0, 1.0], (3, width))
    pair = [(60000 * signs).astype(dtype), (30000 * signs).astype(dtype)]
    want, budget = rms_budget(oracle.wide(pair[0]) + oracle.wide(pair[1]), weight, 1e-6, dtype)
    tensors = [driver.from_host(v.copy()) for v in (*pair, weight)]
    got = driver.fused_residual_rmsnorm(*tensors, eps=1e-6)
    assert oracle.max_error(driver, got, want) <= budget


@pytest.mark.parametrize("offset", [1000.0, -30000.0])
def test_a_mean_far_above_the_deviation_does_not_cancel(driver, rng, offset):
    x = (rng.standard_normal((7, 1025)) + offset).astype(np.float32)
    weight, bias = np.ones(1025, np.float32), np.zeros(1025, np.float32)
    want, budget = norm_budget(x, weight, bias, 1e-12, np.float32)
    got = driver.layer_norm(*map(driver.from_host, (x.copy(), weight, bias)), eps=1e-12)
    assert oracle.max_error(driver, got, want) <= budget


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_eps_is_inside_the_root(driver, dtype, eps):
    """Rows whose variance is about eps: only the right place for eps gives the right answer."""
    x = np.tile(np.array([1, -1], np.float32) * np.sqrt(eps), (3, 17)).astype(dtype)
    weight, bias = np.ones(34, dtype), np.zeros(34, dtype)
    want, budget = norm_budget(x, weight, bias, eps, dtype)
    got = driver.layer_norm(*map(driver.from_host, (x.copy(), weight, bias)), eps=eps)
    assert oracle.max_error(driver, got, want) <= budget


def test_weights_may_be_of_another_dtype_than_the_rows(driver, rng):
    x = rng.standard_normal((7, 33)).astype(np.float16)
    weight, bias = (rng.standard_normal(33).astype(np.float32) for _ in range(2))
    want, budget = norm_budget(x, weight, bias, 1e-5, np.float16)
    got = driver.layer_norm(*map(driver.from_host, (x.copy(), weight, bias)), eps=1e-5)
    assert got.dtype == np.float16
    assert oracle.max_error(driver, got, want) <= budget


def test_a_poisoned_row_stays_alone(driver, rng, dtype):
    x = rng.standard_normal((33, 31)).astype(dtype)
    x[7, 3] = np.nan
    weight, bias = np.ones(31, dtype), np.zeros(31, dtype)
    normed = driver.layer_norm(*map(driver.from_host, (x.copy(), weight, bias)), eps=1e-5)
    unit = driver.l2_normalize(driver.from_host(x.copy()))
    for got in (driver.to_host(normed), driver.to_host(unit)):
        assert np.flatnonzero(np.isnan(got).any(axis=1)).tolist() == [7]


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (5, 384), (2, 7, 33)])
def test_l2_normalize_matches_oracle(driver, rng, dtype, shape):
    x = rng.standard_normal(shape).astype(dtype)
    want = oracle.l2_normalize(x)
    budget = oracle.error_budget(want, dtype, terms=shape[-1])
    check_op(driver, "l2_normalize", [x], want, budget, dtype=dtype, may_alias=[0])


def test_l2_normalize_gives_rows_of_length_one(driver, rng):
    x = (rng.standard_normal((33, 1025)) * 10.0 ** rng.integers(-6, 6, (33, 1))).astype(np.float32)
    got = oracle.wide(driver.to_host(driver.l2_normalize(driver.from_host(x))))
    assert np.abs(np.sqrt((got**2).sum(axis=1)) - 1).max() <= 1e-6


# ---- NUM-20: sums of squares that float16 cannot hold, rows without variance, rows of zeros


def num_20_rows(width, rng):
    spike = np.zeros(width)
    spike[width // 2] = 300
    signs = rng.choice([-1.0, 1.0], width)
    return np.stack(
        [spike, np.full(width, 300.0), np.zeros(width), 300 * signs, 65504 * signs, 2000 * signs]
    )


@pytest.mark.parametrize("eps", [1e-12, 1e-5])
@pytest.mark.parametrize("width", WIDTHS)
def test_num_20_layer_norm_of_rows_whose_squares_overflow_float16(driver, rng, dtype, width, eps):
    x = num_20_rows(width, rng).astype(dtype)
    weight, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    want, budget = norm_budget(x[[0, 3, 4, 5]], weight, bias, eps, dtype)
    got = driver.layer_norm(*map(driver.from_host, (x.copy(), weight, bias)), eps=eps)
    host = driver.to_host(got)
    assert np.isfinite(host).all()
    assert oracle.max_difference(host[[0, 3, 4, 5]], want) <= budget
    assert np.array_equal(host[[1, 2]], np.stack([bias, bias]))  # no variance: the bias, exactly
    near = np.abs(host - oracle.layer_norm(x, weight, bias, eps=eps))
    assert (near <= 2e-3 * np.maximum(1, np.abs(host))).all()


@pytest.mark.parametrize("value", [0.1, 300.1, 2000.7])
@pytest.mark.parametrize("width", WIDTHS)
def test_num_20_layer_norm_of_equal_values_is_the_bias(driver, rng, dtype, width, value):
    """The mean of equal values is that value: what rounding leaves must not be scaled up."""
    x = np.full((3, width), value, dtype)
    weight, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    got = driver.layer_norm(*map(driver.from_host, (x, weight, bias)), eps=1e-12)
    assert oracle.max_error(driver, got, np.stack([oracle.wide(bias)] * 3)) <= 2e-3


@pytest.mark.parametrize("width", WIDTHS)
def test_num_20_residual_sums_above_float16_are_normalised(driver, rng, dtype, width):
    """hidden + residual passes 65504, which only a float32 sum survives."""
    signs = rng.choice([-1.0, 1.0], (3, width))
    hidden = (60000 * signs).astype(dtype)
    residual = (30000 * signs).astype(dtype)
    weight, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    total = oracle.wide(hidden) + oracle.wide(residual)
    want, budget = norm_budget(total, weight, bias, 1e-5, dtype)
    tensors = [driver.from_host(v.copy()) for v in (hidden, residual, weight, bias)]
    got = driver.fused_residual_layernorm(*tensors, eps=1e-5)
    assert oracle.max_error(driver, got, want) <= budget
    norm = NormWeights(tensors[2], tensors[3], eps=1e-5)
    assert oracle.max_error(driver, driver.add_norm(tensors[0], tensors[1], norm), want) <= budget


def test_num_20_a_residual_stream_of_2000_is_normalised(driver, rng):
    x = rng.standard_normal((31, 1025))
    x = (x * (2000 / np.abs(x).max())).astype(np.float16)
    weight, bias = (rng.standard_normal(1025).astype(np.float16) for _ in range(2))
    want, budget = norm_budget(x, weight, bias, 1e-12, np.float16)
    got = driver.layer_norm(*map(driver.from_host, (x.copy(), weight, bias)), eps=1e-12)
    assert oracle.max_error(driver, got, want) <= budget


@pytest.mark.parametrize("width", WIDTHS)
def test_num_20_l2_normalize_where_the_squares_overflow_float16(driver, rng, dtype, width):
    x = num_20_rows(width, rng).astype(dtype)
    want = oracle.l2_normalize(x)
    got = driver.l2_normalize(driver.from_host(x.copy()))
    budget = oracle.error_budget(want, dtype, terms=width)
    assert oracle.max_error(driver, got, want) <= budget
    assert not driver.to_host(got)[2].any()


def test_num_20_l2_normalize_keeps_a_zero_row_zero(driver, dtype):
    got = driver.to_host(driver.l2_normalize(driver.alloc_zeros((3, 1025), dtype)))
    assert not got.any()  # a NaN would be true
