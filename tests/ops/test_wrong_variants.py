"""Wrong variants that look right: each must fail the comparison that the drivers pass.

Each variant is exact in float64 and rounded once to the storage type, so that nothing but the
mistake sets it apart from the oracle.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from drivers import Encoding
from drivers.types import NormWeights
from tests import oracle

LENGTHS, HEADS, DIM = (7, 1, 33), 2, 33
EPS = 1e-5


def blocks(qkv):
    """q, k, v (N, length, D) of each sequence."""
    q, k, v = np.split(oracle.wide(qkv), 3, axis=-1)
    start = 0
    for length in LENGTHS:
        rows = slice(start, start + length)
        start += length
        yield [m[rows].reshape(length, HEADS, DIM).transpose(1, 0, 2) for m in (q, k, v)]


def attend(q, k, v, scale=DIM**-0.5, zero_keys=0):
    """softmax(q k scale) v, with `zero_keys` padded keys of logit 0 that were not masked."""
    logits = q @ k.swapaxes(-1, -2) * scale
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    pad = zero_keys * np.exp(-logits.max(axis=-1, keepdims=True))
    return powers / (powers.sum(axis=-1, keepdims=True) + pad) @ v


def joined(heads):
    return np.concatenate([h.transpose(1, 0, 2).reshape(h.shape[1], -1) for h in heads])


def attention_case(driver, rng, dtype):
    qkv = rng.standard_normal((sum(LENGTHS), 3 * HEADS * DIM)).astype(dtype)
    batch = driver.prepare_batch_unpadded([Encoding(np.ones(n, np.int32)) for n in LENGTHS])
    got = driver.attention(driver.from_host(qkv.copy()), batch, num_heads=HEADS)
    want = oracle.attention(qkv, LENGTHS, num_heads=HEADS)
    swapped_layout = np.ascontiguousarray(qkv.reshape(len(qkv), HEADS, 3, DIM).swapaxes(1, 2))
    longest = max(LENGTHS)
    wrong = {
        "padding not masked": joined(
            attend(q, k, v, zero_keys=longest - q.shape[1]) for q, k, v in blocks(qkv)
        ),
        "not scaled": joined(attend(q, k, v, scale=1.0) for q, k, v in blocks(qkv)),
        "scaled by the hidden size": joined(
            attend(q, k, v, scale=(HEADS * DIM) ** -0.5) for q, k, v in blocks(qkv)
        ),
        "q and k swapped": joined(attend(k, q, v) for q, k, v in blocks(qkv)),
        "k and v swapped": joined(attend(q, v, k) for q, k, v in blocks(qkv)),
        "heads before q, k, v": oracle.attention(
            swapped_layout.reshape(qkv.shape), LENGTHS, num_heads=HEADS
        ),
        "sequences run together": oracle.attention(qkv, [len(qkv)], num_heads=HEADS),
        "causal": joined(
            np.concatenate(
                [attend(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1]) for i in range(q.shape[1])],
                axis=1,
            )
            for q, k, v in blocks(qkv)
        ),
    }
    # a logit's rounding moves a weight by e^(2 e) - 1 of itself; logits stay below 4 here
    logit = 4 * np.finfo(dtype).eps
    terms = math.expm1(2 * logit) * float(np.abs(qkv).max())
    return driver.to_host(got), want, oracle.error_budget(want, dtype, terms=40) + terms, wrong


def linear_case(driver, rng, dtype):
    x, weight, bias, residual = (
        rng.standard_normal(shape).astype(dtype) for shape in [(31, 33), (33, 33), 33, (31, 33)]
    )
    weight = (weight * 33**-0.5).astype(dtype)
    product = oracle.gemm(x, weight, transpose_b=True)
    b, r = oracle.wide(bias), oracle.wide(residual)
    want = oracle.gelu(product + b) + r
    tensors = [driver.from_host(v.copy()) for v in (x, weight, bias, residual)]
    got = driver.linear(*tensors[:3], act="gelu", residual=tensors[3])
    wrong = {
        "residual left out": oracle.gelu(product + b),
        "residual before the activation": oracle.gelu(product + b + r),
        "bias left out": oracle.gelu(product) + r,
        "bias after the activation": oracle.gelu(product) + b + r,
        "weight not transposed": oracle.gelu(oracle.gemm(x, weight) + b) + r,
        "another activation": oracle.quick_gelu(product + b) + r,
    }
    budget = 1.13 * oracle.error_budget(product, dtype, terms=33)
    budget += oracle.error_budget(oracle.gelu(product + b), dtype, terms=16)
    return driver.to_host(got), want, budget + oracle.error_budget(want, dtype), wrong


def gelu_case(driver, rng, dtype):
    """From -4 to -2, where the forms differ by up to 5e-4 and float16 has steps of 3e-5."""
    x = np.linspace(-4, -2, 2049).astype(dtype)
    want = oracle.gelu(x)
    got = driver.gelu(driver.from_host(x.copy()))
    wrong = {
        "tanh for erf": oracle.gelu_tanh(x),
        "quick gelu": oracle.quick_gelu(x),
        "silu": oracle.silu(x),
    }
    return driver.to_host(got), want, oracle.error_budget(want, dtype, terms=16), wrong


def norm_case(driver, rng, dtype):
    hidden, residual = (rng.standard_normal((31, 33)).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(33).astype(dtype) for _ in range(2))
    total = oracle.wide(hidden) + oracle.wide(residual)
    w, b = oracle.wide(weight), oracle.wide(bias)
    centred = total - total.mean(axis=-1, keepdims=True)
    want = oracle.layer_norm(total, weight, bias, eps=EPS)
    tensors = [driver.from_host(v.copy()) for v in (hidden, residual, weight, bias)]
    got = driver.add_norm(tensors[0], tensors[1], NormWeights(*tensors[2:], eps=EPS))
    wrong = {
        "unbiased variance": centred / np.sqrt(total.var(-1, ddof=1)[:, None] + EPS) * w + b,
        "mean not taken off": total / np.sqrt((total**2).mean(-1)[:, None] + EPS) * w + b,
        "residual left out": oracle.layer_norm(hidden, weight, bias, eps=EPS),
        "residual added after": oracle.layer_norm(hidden, weight, bias, eps=EPS) + residual,
        "bias left out": want - b,
        "weight plus one": want + centred / np.sqrt(total.var(-1)[:, None] + EPS),
    }
    budget = oracle.error_budget(want, dtype, terms=33, scale=2 * float(np.abs(want).max()))
    return driver.to_host(got), want, budget, wrong


def pool_case(driver, rng, dtype):
    x = rng.standard_normal((sum(LENGTHS), 33)).astype(dtype)
    skips = (2, 0, 5)
    rows = [Encoding(np.ones(n, np.int32), pool_skip=s) for n, s in zip(LENGTHS, skips)]
    got = driver.pool(
        driver.from_host(x.copy()), driver.prepare_batch_unpadded(rows), ["weighted_mean"]
    )
    want = oracle.pool(x, LENGTHS, "weighted_mean", skips)
    parts = np.split(oracle.wide(x), np.cumsum(LENGTHS)[:-1])

    def weighted(row, skip, first):
        weights = np.arange(first, first + len(row) - skip)[:, None]
        return (row[skip:] * weights).sum(axis=0) / weights.sum()

    wrong = {
        "not weighted": oracle.pool(x, LENGTHS, "mean", skips),
        "nothing skipped": oracle.pool(x, LENGTHS, "weighted_mean"),
        "counted from the first token kept": np.stack(
            [weighted(row, skip, 1) for row, skip in zip(parts, skips)]
        ),
        "padding counted": want * (np.array(LENGTHS) / max(LENGTHS))[:, None],
    }
    budget = oracle.error_budget(want, np.float32, terms=40, scale=float(np.abs(x).max()))
    return got, want, budget, wrong


CASES = {
    "attention": attention_case,
    "linear": linear_case,
    "gelu": gelu_case,
    "norm": norm_case,
    "pool": pool_case,
}


@pytest.mark.parametrize("case", CASES)
def test_the_comparison_accepts_the_driver_and_rejects_every_wrong_variant(
    driver, rng, dtype, case
):
    got, want, budget, wrong = CASES[case](driver, rng, dtype)
    assert oracle.max_difference(got, want) <= budget
    stored = got.dtype
    for name, variant in wrong.items():
        error = oracle.max_difference(variant.astype(stored), want)
        # float32 leaves two orders of magnitude; float16's own rounding takes most of them
        assert error > (100 if stored == np.float32 and dtype == np.float32 else 1) * budget, name


def test_the_budget_accepts_the_rounded_answer_and_rejects_four_storage_steps(rng, dtype):
    want = rng.uniform(1.01, 1.9, 1025)
    near = want.astype(dtype)
    assert oracle.max_difference(near, want) <= oracle.error_budget(want, dtype)
    off = near + np.asarray(4 * np.finfo(dtype).eps, dtype)
    assert oracle.max_difference(off, want) > oracle.error_budget(want, dtype)


def test_a_nan_or_another_shape_never_passes_for_near():
    want = np.zeros((2, 3))
    poisoned = want.copy()
    poisoned[1, 2] = np.nan
    assert not oracle.max_difference(poisoned, want) <= 1e9
    with pytest.raises(AssertionError, match="got shape"):
        oracle.max_difference(np.zeros((1, 3)), want)
