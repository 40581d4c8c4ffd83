"""Matrix products and the sums that follow them."""

from __future__ import annotations

import numpy as np
import pytest

from tests import oracle
from tests.ops.contract import DIVIDES_NOTHING, check_op

PRODUCTS = [(1, 1, 1), (1, 31, 1025), (7, 1025, 33), (33, 7, 1), (31, 1023, 31), (5, 33, 1023)]


@pytest.mark.parametrize("transpose_b", [False, True], ids=["b", "bT"])
@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS)
def test_gemm_matches_oracle(driver, rng, dtype, m, k, n, transpose_b):
    a = rng.standard_normal((m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if transpose_b else (k, n)).astype(dtype)
    want = oracle.gemm(a, b, transpose_b=transpose_b)
    scale = oracle.gemm_scale(a, b, transpose_b=transpose_b)
    budget = oracle.error_budget(want, dtype, terms=k, scale=scale)
    check_op(driver, "gemm", [a, b], want, budget, dtype=dtype, transpose_b=transpose_b)


@pytest.mark.parametrize("transpose_b", [False, True], ids=["b", "bT"])
@pytest.mark.parametrize(
    ("groups", "m", "k", "n"), [(1, 1, 1, 1), (3, 7, 31, 33), (31, 1, 33, 7), (2, 33, 1025, 5)]
)
def test_gemm_batched_matches_oracle(driver, rng, dtype, groups, m, k, n, transpose_b):
    a = rng.standard_normal((groups, m, k)).astype(dtype)
    b = rng.standard_normal((groups, n, k) if transpose_b else (groups, k, n)).astype(dtype)
    want = oracle.gemm(a, b, transpose_b=transpose_b)
    scale = oracle.gemm_scale(a, b, transpose_b=transpose_b)
    budget = oracle.error_budget(want, dtype, terms=k, scale=scale)
    check_op(driver, "gemm_batched", [a, b], want, budget, dtype=dtype, transpose_b=transpose_b)


@pytest.mark.parametrize("transpose_b", [False, True], ids=["b", "bT"])
@pytest.mark.parametrize(
    ("groups", "shared", "m", "k", "n"), [(6, 2, 7, 31, 33), (4, 1, 1, 33, 7), (12, 3, 33, 5, 1)]
)
def test_a_group_of_b_serves_consecutive_groups_of_a(
    driver, rng, dtype, groups, shared, m, k, n, transpose_b
):
    a = rng.standard_normal((groups, m, k)).astype(dtype)
    b = rng.standard_normal((shared, n, k) if transpose_b else (shared, k, n)).astype(dtype)
    repeated = np.repeat(b, groups // shared, axis=0)
    want = oracle.gemm(a, repeated, transpose_b=transpose_b)
    scale = oracle.gemm_scale(a, repeated, transpose_b=transpose_b)
    budget = oracle.error_budget(want, dtype, terms=k, scale=scale)
    check_op(driver, "gemm_batched", [a, b], want, budget, dtype=dtype, transpose_b=transpose_b)


def test_gemm_of_float16_into_float32_is_not_rounded_to_float16(driver, rng):
    a, b = (rng.standard_normal(s).astype(np.float16) for s in [(7, 1023), (1023, 31)])
    want = oracle.gemm(a, b)
    budget = oracle.error_budget(want, np.float32, terms=1023, scale=oracle.gemm_scale(a, b))
    got = driver.gemm(
        driver.from_host(a), driver.from_host(b), out=driver.alloc_zeros((7, 31), np.float32)
    )
    assert got.dtype == np.float32
    assert oracle.max_error(driver, got, want) <= budget
    assert oracle.rounding_error(want, np.float16) > 100 * budget


def test_gemm_sums_in_float32_where_float16_would_stop_at_2048(driver):
    a = driver.from_host(np.ones((1, 4097), np.float16))
    got = driver.gemm(a, a, transpose_b=True, out=driver.alloc_zeros((1, 1), np.float32))
    assert driver.to_host(got).item() == 4097


def test_gemm_takes_the_dtype_of_its_left_side(driver, rng):
    a = driver.from_host(rng.standard_normal((3, 7)).astype(np.float32))
    b = driver.from_host(rng.standard_normal((7, 5)).astype(np.float16))
    assert driver.gemm(a, b).dtype == np.float32


def test_gemm_keeps_poisoned_rows_to_themselves(driver, rng, dtype):
    a = rng.standard_normal((33, 31)).astype(dtype)
    a[7] = np.nan
    b = rng.standard_normal((17, 31)).astype(dtype)
    got = driver.to_host(driver.gemm(driver.from_host(a), driver.from_host(b), transpose_b=True))
    assert np.flatnonzero(np.isnan(got).any(axis=1)).tolist() == [7]


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (2, 7, 33)])
def test_add_bias_matches_oracle(driver, rng, dtype, shape):
    x, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:]))
    want = oracle.wide(x) + oracle.wide(bias)
    budget = oracle.error_budget(want, dtype)
    check_op(driver, "add_bias", [x, bias], want, budget, dtype=dtype, may_alias=[0])


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (2, 7, 33), (31,)])
def test_residual_add_matches_oracle(driver, rng, dtype, shape):
    x, residual = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    want = oracle.wide(x) + oracle.wide(residual)
    budget = oracle.error_budget(want, dtype)
    check_op(driver, "residual_add", [x, residual], want, budget, dtype=dtype, may_alias=[0, 1])


@pytest.mark.parametrize("shape", [*DIVIDES_NOTHING, (2, 7, 33)])
def test_fused_bias_residual_matches_oracle(driver, rng, dtype, shape):
    x, bias, residual = (rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:], shape))
    want = oracle.wide(x) + oracle.wide(bias) + oracle.wide(residual)
    size = max(float(np.abs(v).max()) for v in (x, bias, residual))
    budget = oracle.error_budget(want, dtype, terms=2, scale=2 * size)
    inputs = [x, bias, residual]
    check_op(driver, "fused_bias_residual", inputs, want, budget, dtype=dtype, may_alias=[0, 2])


@pytest.mark.parametrize("op", ["add_bias", "residual_add", "fused_bias_residual"])
def test_sums_of_float16_into_float32_are_exact(driver, op):
    """60000 + 60000 overflows float16 and 2048 + 1 is lost in it; float32 holds both."""
    x = driver.from_host(np.array([[60000, 2048]], np.float16))
    row = driver.from_host(np.array([[60000, 1]], np.float16))
    vector = driver.from_host(np.array([60000, 1], np.float16))
    inputs = {
        "add_bias": (x, vector),
        "residual_add": (x, row),
        "fused_bias_residual": (x, driver.from_host(np.zeros(2, np.float16)), row),
    }[op]
    got = getattr(driver, op)(*inputs, out=driver.alloc_zeros((1, 2), np.float32))
    assert driver.to_host(got).tolist() == [[120000, 2049]]


def test_fused_bias_residual_rounds_float16_once(driver):
    """2048 + 1 - 1: rounding to float16 after each step would give 2047."""
    x = driver.from_host(np.array([[2048]], np.float16))
    bias = driver.from_host(np.array([-1], np.float16))
    residual = driver.from_host(np.array([[1]], np.float16))
    assert driver.to_host(driver.fused_bias_residual(x, bias, residual)).item() == 2048


def test_fused_bias_residual_equals_its_two_steps(driver, rng):
    x, bias, residual = (
        driver.from_host(rng.standard_normal(s).astype(np.float32))
        for s in [(31, 33), (33,), (31, 33)]
    )
    fused = driver.to_host(driver.fused_bias_residual(x, bias, residual))
    steps = driver.to_host(driver.residual_add(driver.add_bias(x, bias), residual))
    assert oracle.max_difference(fused, steps) <= oracle.error_budget(steps, np.float32, terms=4)
