"""The steps of padded attention: mask, split, masked softmax, reshape."""

from __future__ import annotations

import numpy as np
import pytest

from drivers.types import MASK_VALUE
from tests import oracle
from tests.ops.contract import check_op, softmax_budget

SOFTMAXES = [(1, 1, 1), (2, 3, 7), (3, 2, 31), (1, 12, 33), (7, 1, 65), (1, 1, 257)]  # B, N, S


def run_softmax(driver, scores, mask, **options):
    tensors = driver.from_host(scores.copy()), driver.from_host(mask.copy())
    return driver.to_host(driver.fused_scale_mask_softmax(*tensors, **options))


def test_build_attn_mask_is_zero_for_tokens_and_mask_value_for_padding(driver):
    int_mask = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
    want = np.array([[0, 0, MASK_VALUE], [0, MASK_VALUE, MASK_VALUE]])
    check_op(driver, "build_attn_mask", [int_mask], want, 0.0, dtype=np.float32)


@pytest.mark.parametrize(("batch", "heads", "seq"), SOFTMAXES)
def test_softmax_matches_oracle(driver, rng, dtype, batch, heads, seq):
    scores = (rng.standard_normal((batch * heads, seq, seq)) * 4).astype(dtype)
    lengths = rng.integers(1, seq + 1, batch)
    mask = np.where(np.arange(seq) < lengths[:, None], 0, MASK_VALUE).astype(np.float32)
    want = oracle.masked_softmax(scores, mask, num_heads=heads, scale=0.3)
    budget = softmax_budget(scores, 0.3, want, dtype, mask)
    check_op(
        driver,
        "fused_scale_mask_softmax",
        [scores, mask],
        want,
        budget,
        dtype=dtype,
        may_alias=[0],
        num_heads=heads,
        scale=0.3,
    )


def test_softmax_weights_sum_to_one_over_the_unmasked_keys(driver, rng):
    scores = (rng.standard_normal((6, 33, 33)) * 8).astype(np.float32)
    mask = np.where(rng.random((2, 33)) < 0.5, 0, MASK_VALUE).astype(np.float32)
    got = oracle.wide(run_softmax(driver, scores, mask, num_heads=3, scale=1.0))
    assert np.abs(got.sum(axis=-1) - 1).max() <= 1e-6


@pytest.mark.parametrize("value", [-5000.0, -5001.0, MASK_VALUE, -3e38, -np.inf])
def test_a_mask_at_or_below_minus_5000_leaves_no_weight_at_all(driver, rng, dtype, value):
    scores = rng.standard_normal((4, 7, 7)).astype(dtype)
    scores[:, :, 3] = 60000  # what the masked key would win with
    mask = np.zeros((2, 7), np.float32)
    mask[:, 3] = value
    got = run_softmax(driver, scores, mask, num_heads=2, scale=1.0)
    assert not got[:, :, 3].any()
    want = oracle.masked_softmax(scores, mask, num_heads=2, scale=1.0)
    scores[:, :, 3] = 0
    assert oracle.max_difference(got, want) <= softmax_budget(scores, 1.0, want, dtype, mask)


def test_a_mask_above_minus_5000_is_only_added(driver, rng):
    scores = rng.standard_normal((2, 7, 7)).astype(np.float32)
    mask = rng.standard_normal((1, 7)).astype(np.float32)
    got = run_softmax(driver, scores, mask, num_heads=2, scale=0.5)
    want = oracle.masked_softmax(scores, mask, num_heads=2, scale=0.5)
    assert oracle.max_difference(got, want) <= softmax_budget(scores, 0.5, want, np.float32, mask)
    everywhere = np.full((1, 7), -4999, np.float32)
    got = run_softmax(driver, scores, everywhere, num_heads=2, scale=0.5)
    want = oracle.masked_softmax(scores, everywhere, num_heads=2, scale=0.5)
    budget = softmax_budget(scores, 0.5, want, np.float32, everywhere)
    assert oracle.max_difference(got, want) <= budget


def test_a_row_with_every_key_masked_gives_zeros(driver, rng, dtype):
    scores = rng.standard_normal((6, 33, 33)).astype(dtype)
    mask = np.zeros((3, 33), np.float32)
    mask[1] = MASK_VALUE
    got = run_softmax(driver, scores, mask, num_heads=2, scale=1.0)
    assert not got[2:4].any()
    want = oracle.masked_softmax(scores, mask, num_heads=2, scale=1.0)
    assert oracle.max_difference(got, want) <= softmax_budget(scores, 1.0, want, dtype, mask)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_under_the_mask_leaves_no_trace(driver, rng, dtype, poison):
    scores = rng.standard_normal((4, 7, 7)).astype(dtype)
    mask = np.zeros((2, 7), np.float32)
    mask[:, 5:] = MASK_VALUE
    clean = run_softmax(driver, scores, mask, num_heads=2, scale=0.5)
    scores[:, :, 5:] = poison
    got = run_softmax(driver, scores, mask, num_heads=2, scale=0.5)
    assert np.array_equal(got, clean)


def test_each_sequence_uses_its_own_mask_for_all_its_heads(driver):
    """Sequence b may see key b alone, so every head of it must put all its weight there."""
    scores = np.zeros((3 * 5, 3, 3), np.float32)
    mask = np.where(np.eye(3, dtype=bool), 0, MASK_VALUE).astype(np.float32)
    got = run_softmax(driver, scores, mask, num_heads=5, scale=1.0)
    for group, block in enumerate(got):
        assert np.array_equal(block, np.tile(np.eye(3)[group // 5], (3, 1)))


def test_scores_far_from_zero_neither_overflow_nor_vanish(driver, dtype):
    scores = np.array([[[60000, 59968, 0], [-60000, -59968, -60000], [0, 0, 0]]], dtype)
    mask = np.zeros((1, 3), np.float32)
    got = run_softmax(driver, scores, mask, num_heads=1, scale=1.0)
    want = oracle.masked_softmax(scores, mask, num_heads=1, scale=1.0)
    budget = softmax_budget(np.full((1, 1, 3), 32), 1.0, want, dtype, mask)
    assert oracle.max_difference(got, want) <= budget


@pytest.mark.parametrize(
    ("batch", "seq", "heads", "dim"), [(1, 1, 1, 1), (3, 7, 2, 31), (2, 33, 5, 7), (1, 65, 12, 32)]
)
def test_qkv_split_puts_q_before_k_before_v_by_head(driver, rng, dtype, batch, seq, heads, dim):
    qkv = rng.standard_normal((batch, seq, 3 * heads * dim)).astype(dtype)
    parts = driver.qkv_split(driver.from_host(qkv.copy()), num_heads=heads)
    for part, third in zip(parts, np.split(qkv, 3, axis=-1), strict=True):
        assert part.dtype == dtype
        host = driver.to_host(part)
        assert host.shape == (batch * heads, seq, dim)
        for group, block in enumerate(host):
            row, head = divmod(group, heads)
            assert np.array_equal(block, third[row, :, head * dim : (head + 1) * dim])


@pytest.mark.parametrize(
    ("batch", "seq", "heads", "dim"), [(1, 1, 1, 1), (3, 7, 2, 31), (2, 33, 5, 7), (1, 65, 12, 32)]
)
def test_attn_reshape_puts_heads_side_by_side(driver, rng, dtype, batch, seq, heads, dim):
    x = rng.standard_normal((batch * heads, seq, dim)).astype(dtype)
    rows = [np.concatenate(x[b * heads : (b + 1) * heads], axis=-1) for b in range(batch)]
    check_op(driver, "attn_reshape", [x], np.stack(rows), 0.0, dtype=dtype, num_heads=heads)


def test_attn_reshape_undoes_each_part_of_the_split(driver, rng, dtype):
    qkv = rng.standard_normal((3, 7, 3 * 5 * 31)).astype(dtype)
    parts = driver.qkv_split(driver.from_host(qkv.copy()), num_heads=5)
    back = [driver.to_host(driver.attn_reshape(part, num_heads=5)) for part in parts]
    assert np.array_equal(np.concatenate(back, axis=-1), qkv)
