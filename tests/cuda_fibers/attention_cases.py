"""What the tests of the attention kernels share: cases, their answers in float64, and budgets."""

from __future__ import annotations

from itertools import pairwise

import ml_dtypes
import numpy as np

from drivers.cuda.driver import CudaDriver
from tests import oracle
from tests.cuda_fibers.device import FiberDevice
from tests.ops.test_attention_options import batch_of

LENGTHS = (33, 1, 70, 17)


class PlainDriver(CudaDriver):
    """The kernel in plain arithmetic for every dtype and head size, in an order of threads."""

    def __init__(self, order, edit=None):
        super().__init__(FiberDevice(order, edit))

    def _attention_theme(self, dtype, head_dim):
        return "varlen_attention"


def case(rng, dtype, heads, lengths=LENGTHS):
    """qkv (T, (N + 2 KV) * D), normal deviates."""
    width = (heads["num_heads"] + 2 * heads["kv_heads"]) * heads["head_dim"]
    return rng.standard_normal((sum(lengths), width)).astype(dtype)


def run_attention(driver, qkv, lengths, **options):
    """The driver's attention of host arrays: (T, (N + 2 KV) D) -> (T, N D)."""
    bias = options.pop("position_bias", None)
    bias = None if bias is None else driver.from_host(bias)
    batch = batch_of(driver, lengths)
    return driver.attention(driver.from_host(qkv), batch, position_bias=bias, **options)


def attend(
    qkv, lengths, *, num_heads, kv_heads, head_dim, scale, window_left=None, window_right=None,
    position_bias=None,
):  # fmt: skip
    """The formula, one sequence and head at a time, in float64; zeros where nothing is seen."""
    q, k, v = np.split(oracle.wide(qkv), np.cumsum([num_heads, kv_heads]) * head_dim, axis=1)
    out = np.zeros(q.shape)
    for start, end in pairwise(np.cumsum([0, *lengths])):
        position = np.arange(end - start)
        offset = position - position[:, None]  # (S, S), key - query
        seen = (offset >= (-np.inf if window_left is None else -window_left)) & (
            offset <= (np.inf if window_right is None else window_right)
        )
        for head in range(num_heads):
            shared = head * kv_heads // num_heads
            own, other = (slice(n * head_dim, (n + 1) * head_dim) for n in (head, shared))
            logits = q[start:end, own] @ k[start:end, other].T * scale
            if position_bias is not None:
                logits = logits + position_bias[head][offset + position_bias.shape[1] // 2]
            logits = np.where(seen, logits, -np.inf)
            highest = logits.max(axis=1, keepdims=True)
            powers = np.exp(logits - np.where(highest == -np.inf, 0, highest))
            total = powers.sum(axis=1, keepdims=True)
            out[start:end, own] = powers / np.where(total == 0, 1, total) @ v[start:end, other]
    return out


def budget_of(qkv, want, heads, *, lengths=LENGTHS, stored_weights=False, bias=0.0):
    """A float32 logit errs by e, so a weight by its own share times exp(2 e) - 1.

    stored_weights: they are rounded to the storage type for their product with the values.
    bias: the largest of a position bias.
    """
    dim = heads["head_dim"]
    largest = float(np.abs(oracle.wide(qkv)).max())
    norm = np.sqrt((oracle.wide(qkv).reshape(-1, dim) ** 2).sum(axis=1)).max()
    logit = abs(heads["scale"]) * oracle.FLOAT32_ROUNDING * np.sqrt(dim) * norm**2
    logit += oracle.FLOAT32_ROUNDING * 2 * bias
    noise = oracle.error_budget(want, qkv.dtype, terms=max(lengths) + 8, scale=largest)
    weight = float(np.expm1(2 * logit))
    weight += float(ml_dtypes.finfo(qkv.dtype).eps) / 2 if stored_weights else 0.0
    return noise + largest * weight
