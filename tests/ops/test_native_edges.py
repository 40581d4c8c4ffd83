"""Values at the edge of what a kernel is given: NaN, infinity, nothing at all.

Each instruction set does what the primitives say, and what NumPy does.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from drivers import Encoding, open_driver

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = [name for name in rayvec_native.instruction_sets() if not name.startswith("amx_bf16")]
POOLS = ["max", "mean", "mean_sqrt_len", "weighted_mean"]


@pytest.fixture(params=SETS)
def cpu(request):
    """The cpu driver of each instruction set with float32 kernels of its own."""
    return open_driver(f"cpu:{request.param}")


def batch_of(driver, lengths, pool_skip=0):
    return driver.prepare_batch_unpadded(
        [Encoding(np.ones(n, np.int32), pool_skip=pool_skip) for n in lengths]
    )


# ---- pooling


@pytest.mark.parametrize("mode", POOLS)
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_pool_is_nan_where_one_of_its_tokens_is(cpu, rng, mode, row):
    x = rng.standard_normal((3, 19)).astype(np.float32)
    x[row, 18] = np.nan
    got = cpu.pool(x, batch_of(cpu, [3]), [mode])
    assert np.flatnonzero(np.isnan(got)).tolist() == [18]
    assert cpu.native_calls["pool"] == 1


@pytest.mark.parametrize("mode", POOLS)
def test_a_skipped_token_leaves_no_trace_in_the_pool(cpu, rng, mode):
    x = rng.standard_normal((4, 19)).astype(np.float32)
    clean = cpu.pool(x, batch_of(cpu, [4], pool_skip=2), [mode])
    x[:2] = [[np.nan], [np.inf]]
    assert np.array_equal(cpu.pool(x, batch_of(cpu, [4], pool_skip=2), [mode]), clean)


@pytest.mark.parametrize("mode", POOLS)
def test_the_pool_of_a_sequence_without_tokens_is_zero(cpu, rng, mode):
    batch = batch_of(cpu, [2, 2])
    batch = replace(batch, seq_lengths=(4, 0), cu_seqlens=np.int32([0, 4, 4]), max_seq=4)
    got = cpu.pool(rng.standard_normal((4, 19)).astype(np.float32), batch, [mode])
    assert got[0].all()
    assert not got[1].any()


# ---- attention


def test_a_query_whose_keys_are_all_masked_by_the_bias_gives_zeros(cpu, rng):
    """And what stands behind its window, which is masked too, is not taken instead."""
    qkv = rng.standard_normal((40, 3 * 2 * 5)).astype(np.float32)
    bias = np.zeros((2, 79), np.float32)
    bias[1] = -np.inf
    for window in (None, 0, 3):
        got = cpu.attention(
            qkv,
            batch_of(cpu, [40]),
            num_heads=2,
            window_left=window,
            window_right=window,
            position_bias=bias,
        )
        assert got[:, :5].all()
        assert not got[:, 5:].any()


def test_a_bias_of_minus_infinity_hides_a_key(cpu, rng):
    """All distances but 0 hidden: each token attends to itself."""
    qkv = rng.standard_normal((40, 3 * 5)).astype(np.float32)
    bias = np.full((1, 79), -np.inf, np.float32)
    bias[0, 39] = 0
    got = cpu.attention(qkv, batch_of(cpu, [40]), num_heads=1, position_bias=bias)
    assert np.array_equal(got, qkv[:, 10:])


@pytest.mark.parametrize("reach", [40, 2**31, 2**62, 2**63 - 1])
def test_a_window_beyond_the_sequence_is_no_window(cpu, rng, reach):
    qkv = rng.standard_normal((40, 3 * 5)).astype(np.float32)
    batch = batch_of(cpu, [40])
    free = cpu.attention(qkv, batch, num_heads=1)
    for side in ("window_left", "window_right"):
        assert np.array_equal(cpu.attention(qkv, batch, num_heads=1, **{side: reach}), free)
    out = np.empty_like(free)
    nothing = [None] * 4
    cpu.kernels.attention(
        qkv, batch.cu_seqlens, 1, 1, 5, 5**-0.5, *nothing, 0.0, reach, reach, None, out
    )
    assert np.array_equal(out, free)
