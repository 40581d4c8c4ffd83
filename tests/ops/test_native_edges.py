"""Values at the edge of what a kernel is given: NaN, infinity, nothing at all.

Each instruction set does what the primitives say, and what NumPy does.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from drivers import Encoding, ShapeError, open_driver
from drivers.types import EmbeddingTable
from tests.tiles import TILE_SETS

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = [name for name in rayvec_native.instruction_sets() if name not in TILE_SETS]
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


# ---- activations


def test_gelu_is_zero_far_below_and_no_gate_makes_it_more(cpu):
    """0 times infinity is NaN, as it is for NumPy."""
    weight = cpu.pack(np.float32([[1], [0]]), "gated", np.float32)
    x = np.float32([[-13], [-1e30], [-np.inf]])
    linear = cpu.pack(np.float32([[1]]), "linear", np.float32)
    assert not cpu.linear(x, linear, act="gelu").any()
    with np.errstate(invalid="ignore"):
        gated = cpu.gated_linear(x[:2], weight, np.float32([0, np.inf]), act="gelu")
    assert np.isnan(gated).all()


# ---- what does not fit together


@pytest.mark.parametrize("role", ["linear", "gated"])
@pytest.mark.parametrize("packer", SETS)
def test_a_weight_packed_by_another_set_gives_the_same(cpu, rng, packer, role):
    """Panels of two widths may have the same size; the wider one's columns are elsewhere."""
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in [(4, 7), (64, 7)])
    packed = open_driver(f"cpu:{packer}").pack(weight, role, np.float32)
    if role == "linear":
        got, want = cpu.linear(x, packed), x @ weight.T
    else:
        first, second = np.split(x @ weight.T, 2, axis=1)
        got, want = cpu.gated_linear(x, packed, act="relu"), np.maximum(first, 0) * second
    assert np.abs(got - want).max() < 1e-5
    same_width = open_driver(f"cpu:{packer}").kernels.lanes == cpu.kernels.lanes
    assert sum(cpu.composed_calls.values()) == (not same_width)


def test_ids_of_two_lengths_are_refused(any_driver):
    batch = batch_of(any_driver, [2, 2])
    batch = replace(batch, position_ids=np.zeros(3, np.int32))
    table = any_driver.alloc_zeros((2, 7))
    entries = [EmbeddingTable(table, "input_ids"), EmbeddingTable(table, "position_ids")]
    if any_driver.name == "null":
        batch = replace(batch, position_ids=any_driver.from_host(batch.position_ids))
    with pytest.raises(ShapeError):
        any_driver.embed(batch, entries)


def test_bounds_of_another_number_of_sequences_are_refused(cpu):
    batch = replace(batch_of(cpu, [2, 2]), cu_seqlens=np.int32([0, 1, 2, 4]))
    x = np.zeros((4, 12), np.float32)
    with pytest.raises(ShapeError, match=r"attention: cu_seqlens has shape \(4,\), wanted \(3\)"):
        cpu.attention(x, batch, num_heads=2)
    with pytest.raises(ShapeError, match=r"pool: cu_seqlens has shape \(4,\), wanted \(3\)"):
        cpu.pool(x, batch, ["mean"])


def test_a_length_above_the_batchs_limit_and_heads_without_width_are_refused(any_driver):
    batch = replace(batch_of(any_driver, [4]), max_seq=2)
    with pytest.raises(ShapeError, match="attention: lengths from 4 to 4, max_seq is 2"):
        any_driver.attention(any_driver.alloc_zeros((4, 12)), batch, num_heads=2)
    with pytest.raises(ShapeError, match="pool: lengths from 4 to 4, max_seq is 2"):
        any_driver.pool(any_driver.alloc_zeros((4, 12)), batch, ["mean"])
    batch, flat = batch_of(any_driver, [4]), any_driver.alloc_zeros((4, 0))
    for heads in ({}, {"kv_heads": 1}, {"scale": 1.0}):
        with pytest.raises(ShapeError, match=r"attention: qkv has shape \(4, 0\), wanted a last"):
            any_driver.attention(flat, batch, num_heads=2, **heads)
