"""Gated linear units: which half is activated, the split, and the fused form."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DriverError, ShapeError
from tests import oracle
from tests.ops.contract import DIVIDES_NOTHING, check_op, nans

ACTS = sorted(oracle.ACTIVATIONS)
FLOAT_STEPS = 17  # those of an activation, and the product


def gate_budget(want, other, dtype):
    """The activation's own error, up to a value of about 1, is scaled by the other half."""
    scale = max(1.0, float(np.abs(want).max())) * max(1.0, float(np.abs(oracle.wide(other)).max()))
    return oracle.error_budget(want, dtype, terms=FLOAT_STEPS, scale=scale)


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (31,), (2, 7, 33)])
def test_geglu_activates_the_value(driver, rng, dtype, shape):
    value, gate = ((rng.standard_normal(shape) * 2).astype(dtype) for _ in range(2))
    want = oracle.gated(value, gate, "gelu")
    budget = gate_budget(want, gate, dtype)
    check_op(driver, "geglu", [value, gate], want, budget, dtype=dtype, may_alias=[0, 1])


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (31,), (2, 7, 33)])
def test_swiglu_activates_the_gate(driver, rng, dtype, shape):
    value, gate = ((rng.standard_normal(shape) * 2).astype(dtype) for _ in range(2))
    want = oracle.gated(gate, value, "silu")
    budget = gate_budget(want, value, dtype)
    check_op(driver, "swiglu", [value, gate], want, budget, dtype=dtype, may_alias=[0, 1])


@pytest.mark.parametrize("op", ["geglu", "swiglu"])
def test_a_gate_takes_the_dtype_of_its_value(driver, op):
    value = driver.from_host(np.ones((3, 7), np.float32))
    gate = driver.from_host(np.ones((3, 7), np.float16))
    assert getattr(driver, op)(value, gate).dtype == np.float32
    assert getattr(driver, op)(gate, value).dtype == np.float16


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (2, 7, 33)])
def test_fused_split_gate_activates_the_first_half(driver, rng, dtype, act, shape):
    x = (rng.standard_normal((*shape[:-1], 2 * shape[-1])) * 2).astype(dtype)
    first, second = np.split(x, 2, axis=-1)
    want = oracle.gated(first, second, act)
    budget = gate_budget(want, second, dtype)
    check_op(driver, "fused_split_gate", [x], want, budget, dtype=dtype, act=act)


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (2, 7, 33)])
def test_split_gate_value_gives_the_first_half_first(driver, rng, dtype, shape):
    x = rng.standard_normal((*shape[:-1], 2 * shape[-1])).astype(dtype)
    out = (nans(driver, shape, dtype), nans(driver, shape, dtype))
    for given in (None, out):
        got = driver.split_gate_value(driver.from_host(x.copy()), out=given)
        for half, want in zip(got, np.split(x, 2, axis=-1), strict=True):
            assert half.dtype == dtype
            assert np.array_equal(driver.to_host(half), want)
    assert got[0] is out[0]
    assert got[1] is out[1]


@pytest.mark.parametrize("shape", DIVIDES_NOTHING)
def test_fused_split_geglu_is_the_split_and_the_gate_to_the_bit(driver, rng, dtype, shape):
    x = rng.standard_normal((shape[0], 2 * shape[1])).astype(dtype)
    fused = driver.to_host(driver.fused_split_geglu(driver.from_host(x.copy())))
    halves = driver.split_gate_value(driver.from_host(x.copy()))
    assert np.array_equal(fused, driver.to_host(driver.geglu(*halves)))
    named = driver.fused_split_gate(driver.from_host(x.copy()), "gelu")
    assert np.array_equal(fused, driver.to_host(named))
    want = oracle.gated(x[:, : shape[1]], x[:, shape[1] :], "gelu")
    assert oracle.max_difference(fused, want) <= gate_budget(want, x, dtype)


def test_a_gate_is_rounded_once(driver):
    """1025 * silu(3) is 2930; with silu(3) rounded to float16 on the way it would be 2928."""
    value = driver.from_host(np.array([[1025]], np.float16))
    gate = driver.from_host(np.array([[3]], np.float16))
    assert driver.to_host(driver.swiglu(value, gate)).item() == 2930


def test_gates_refuse_an_odd_width_another_shape_and_an_unknown_activation(any_driver):
    x = any_driver.alloc_zeros((3, 7))
    for op in ("split_gate_value", "fused_split_geglu"):
        with pytest.raises(ShapeError, match=rf"^{op}: x has shape \(3, 7\), wanted .* even"):
            getattr(any_driver, op)(x)
    other = any_driver.alloc_zeros((3, 8))
    for op in ("geglu", "swiglu"):
        with pytest.raises(ShapeError, match=rf"^{op}: gate has shape \(3, 8\), wanted \(3, 7\)"):
            getattr(any_driver, op)(x, other)
    with pytest.raises(DriverError, match="fused_split_gate: unknown activation 'swish'"):
        any_driver.fused_split_gate(other, "swish")
    half = any_driver.alloc_zeros((3, 4))
    with pytest.raises(ShapeError, match="split_gate_value: out has 1 tensors, wanted 2"):
        any_driver.split_gate_value(other, out=(half,))
    with pytest.raises(ShapeError, match="split_gate_value: out has shape"):
        any_driver.split_gate_value(other, out=(half, x))
