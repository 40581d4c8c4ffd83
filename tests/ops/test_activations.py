"""Activations: accuracy on dense grids, the right variant of gelu, and the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DriverError
from tests import oracle
from tests.ops.contract import DIVIDES_NOTHING, check_op

ACTS = sorted(oracle.ACTIVATIONS)
FLOAT_STEPS = 16  # float32 operations from x to act(x), counting an exp or tanh as four


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (31,), (2, 7, 33)])
def test_activate_matches_oracle(driver, rng, dtype, act, shape):
    x = (rng.standard_normal(shape) * 3).astype(dtype)
    want = oracle.ACTIVATIONS[act](x)
    scale = max(1.0, float(np.abs(want).max()))
    budget = oracle.error_budget(want, dtype, terms=FLOAT_STEPS, scale=scale)
    check_op(driver, "activate", [x], want, budget, dtype=dtype, may_alias=[0], act=act)


@pytest.mark.parametrize("shape", DIVIDES_NOTHING)
def test_gelu_matches_oracle(driver, rng, dtype, shape):
    x = (rng.standard_normal(shape) * 3).astype(dtype)
    want = oracle.gelu(x)
    scale = max(1.0, float(np.abs(want).max()))
    budget = oracle.error_budget(want, dtype, terms=FLOAT_STEPS, scale=scale)
    check_op(driver, "gelu", [x], want, budget, dtype=dtype, may_alias=[0])


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (2, 7, 33)])
def test_fused_bias_gelu_matches_oracle(driver, rng, dtype, shape):
    x, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:]))
    want = oracle.gelu(oracle.wide(x) + oracle.wide(bias))
    scale = max(1.0, float(np.abs(want).max()))
    budget = oracle.error_budget(want, dtype, terms=FLOAT_STEPS, scale=scale)
    check_op(driver, "fused_bias_gelu", [x, bias], want, budget, dtype=dtype, may_alias=[0])


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
def test_accuracy_on_a_dense_grid(driver, act):
    """At most 4e-7 of max(1, |x|) anywhere in [-40, 40], float32 storage."""
    x = np.linspace(-40, 40, 80_001, dtype=np.float32)
    got = driver.to_host(driver.activate(driver.from_host(x.copy()), act))
    error = np.abs(oracle.wide(got) - oracle.ACTIVATIONS[act](x))
    assert (error / np.maximum(1, np.abs(oracle.wide(x)))).max() <= 4e-7


def test_gelu_keeps_its_relative_accuracy_in_the_negative_tail(driver):
    """x * Phi(x) down to -10, where 1 + erf would have cancelled to nothing."""
    from math import erfc, sqrt

    x = np.linspace(-10, -0.01, 5001, dtype=np.float32)
    want = np.array([v / 2 * erfc(-v / sqrt(2)) for v in x.astype(np.float64)])
    got = oracle.wide(driver.to_host(driver.gelu(driver.from_host(x.copy()))))
    # exp(-x^2 / 2) amplifies the rounding of x^2 / 2 by its own size, at most 50
    assert np.abs(got / want - 1).max() <= 2 * (50 + FLOAT_STEPS) * oracle.FLOAT32_ROUNDING


@pytest.mark.parametrize(("right", "wrong"), [("gelu", "gelu_tanh"), ("gelu_tanh", "gelu")])
def test_the_erf_and_tanh_forms_are_told_apart(driver, right, wrong):
    x = np.linspace(-40, 40, 40_001, dtype=np.float32)
    got = driver.activate(driver.from_host(x.copy()), right)
    error = oracle.max_error(driver, got, oracle.ACTIVATIONS[right](x))
    assert oracle.max_error(driver, got, oracle.ACTIVATIONS[wrong](x)) >= 100 * error


def test_every_way_to_gelu_is_the_erf_form(driver, rng):
    x = rng.standard_normal((31, 33)).astype(np.float32)
    zero = driver.alloc_zeros((33,), np.float32)
    eye = driver.from_host(np.eye(33, dtype=np.float32))
    ways = {
        "gelu": driver.gelu(driver.from_host(x.copy())),
        "activate": driver.activate(driver.from_host(x.copy()), "gelu"),
        "fused_bias_gelu": driver.fused_bias_gelu(driver.from_host(x.copy()), zero),
        "linear": driver.linear(driver.from_host(x.copy()), eye, act="gelu"),
        "linear with bias": driver.linear(driver.from_host(x.copy()), eye, zero, act="gelu"),
    }
    for way, got in ways.items():
        error = oracle.max_error(driver, got, oracle.gelu(x))
        assert oracle.max_error(driver, got, oracle.gelu_tanh(x)) >= 100 * error, way


@pytest.mark.parametrize("act", ACTS)
def test_the_ends_of_float32_give_the_limits(driver, act):
    x = np.array([-3e38, -1e30, -1e20, -200, 200, 1e20, 1e30, 3e38], np.float32)
    got = driver.to_host(driver.activate(driver.from_host(x.copy()), act))
    assert np.isfinite(got).all()
    assert np.allclose(got, oracle.ACTIVATIONS[act](x), rtol=1e-6, atol=0)


@pytest.mark.parametrize("act", ACTS)
def test_the_ends_of_float16_give_the_limits(driver, act):
    x = np.array([-65504, -1000, -30, 30, 1000, 65504], np.float16)
    got = driver.to_host(driver.activate(driver.from_host(x.copy()), act))
    want = oracle.ACTIVATIONS[act](x)
    assert np.array_equal(got, want.astype(np.float16))


@pytest.mark.parametrize("act", ACTS)
def test_zero_stays_zero_and_a_nan_stays_where_it_is(driver, dtype, act):
    x = np.zeros((3, 31), dtype)
    x[1, 5] = np.nan
    got = driver.to_host(driver.activate(driver.from_host(x.copy()), act))
    assert np.argwhere(np.isnan(got)).tolist() == [[1, 5]]
    assert np.count_nonzero(got) == 1


@pytest.mark.parametrize("act", ACTS)
def test_a_value_does_not_depend_on_its_place(driver, rng, act):
    """The same values in another shape and order: block edges and vector tails change nothing."""
    x = (rng.standard_normal(20_001) * 4).astype(np.float32)
    whole = driver.to_host(driver.activate(driver.from_host(x.copy()), act))
    order = rng.permutation(len(x))
    rows = driver.to_host(driver.activate(driver.from_host(x[order].reshape(59, 339)), act))
    budget = oracle.error_budget(whole, np.float32, terms=FLOAT_STEPS)
    assert oracle.max_difference(rows.reshape(-1), whole[order]) <= budget


def test_an_unknown_activation_is_named_beside_the_known_ones(any_driver):
    x = any_driver.alloc_zeros((2, 3), np.float32)
    with pytest.raises(DriverError, match=r"unknown activation 'swish'.*gelu.*silu"):
        any_driver.activate(x, "swish")
