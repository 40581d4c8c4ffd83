"""Heads in and out of padded batches: grouped splits, and the fused forms of pad and unpad."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import ShapeError
from tests.ops.contract import nans

SPLITS = [(1, 1, 1), (4, 2, 7), (6, 1, 31), (12, 12, 32), (3, 3, 33)]  # N, KV, D
RAGGED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def by_head(columns, heads):
    """(B, S, heads * D) -> (B * heads, S, D), one block at a time."""
    return np.concatenate([np.stack(np.split(row, heads, axis=-1)) for row in columns])


def split_oracle(qkv, heads, kv):
    dim = qkv.shape[-1] // (heads + 2 * kv)
    ends = np.cumsum([heads, kv]) * dim
    return [by_head(x, n) for x, n in zip(np.split(qkv, ends, axis=-1), (heads, kv, kv))]


def buffers(driver, wanted, dtype):
    return tuple(nans(driver, part.shape, dtype) for part in wanted)


@pytest.mark.parametrize("explicit", [False, True], ids=["derived", "head_dim"])
@pytest.mark.parametrize(("heads", "kv", "dim"), SPLITS)
def test_qkv_split_gives_key_and_value_heads_of_their_own_number(
    driver, rng, dtype, heads, kv, dim, explicit
):
    qkv = rng.standard_normal((3, 7, (heads + 2 * kv) * dim)).astype(dtype)
    wanted = split_oracle(qkv, heads, kv)
    options = {"num_heads": heads, "kv_heads": kv, "head_dim": dim if explicit else None}
    for out in (None, buffers(driver, wanted, dtype)):
        got = driver.qkv_split(driver.from_host(qkv.copy()), out=out, **options)
        for part, want in zip(got, wanted, strict=True):
            assert part.dtype == dtype
            assert np.array_equal(driver.to_host(part), want)
    assert all(part is given for part, given in zip(got, out))


@RAGGED
@given(
    lengths=st.lists(st.integers(0, 33), min_size=1, max_size=6),
    extra=st.integers(0, 5),
    split=st.sampled_from(SPLITS),
)
def test_fused_pad_qkv_split_is_the_pad_and_the_split_to_the_bit(driver, lengths, extra, split):
    heads, kv, dim = split
    max_seq = max(lengths) + extra
    options = {"num_heads": heads, "kv_heads": kv, "head_dim": dim}
    padding = {"seq_lengths": lengths, "max_seq": max_seq}
    for dtype in (np.float32, np.float16):
        flat = np.random.default_rng(7).standard_normal((sum(lengths), (heads + 2 * kv) * dim))
        flat = flat.astype(dtype)
        padded = driver.pad_to_batch(driver.from_host(flat.copy()), **padding)
        wanted = split_oracle(driver.to_host(padded), heads, kv)
        for out in (None, buffers(driver, wanted, dtype)):
            got = driver.fused_pad_qkv_split(
                driver.from_host(flat.copy()), out=out, **padding, **options
            )
            for part, want in zip(got, wanted, strict=True):
                assert np.array_equal(driver.to_host(part), want)
        assert all(part is given for part, given in zip(got, out))


@RAGGED
@given(
    lengths=st.lists(st.integers(0, 33), min_size=1, max_size=6),
    extra=st.integers(0, 5),
    heads=st.sampled_from([1, 3, 12]),
    dim=st.sampled_from([1, 7, 32]),
)
def test_fused_reshape_unpad_is_the_reshape_and_the_unpad_to_the_bit(
    driver, lengths, extra, heads, dim
):
    shape = (len(lengths) * heads, max(lengths) + extra, dim)
    for dtype in (np.float32, np.float16):
        x = np.random.default_rng(7).standard_normal(shape).astype(dtype)
        padded = driver.attn_reshape(driver.from_host(x.copy()), num_heads=heads)
        want = driver.to_host(driver.unpad_from_batch(padded, seq_lengths=lengths))
        for out in (None, nans(driver, want.shape, dtype)):
            got = driver.fused_reshape_unpad(
                driver.from_host(x.copy()), seq_lengths=lengths, num_heads=heads, out=out
            )
            assert got.dtype == dtype
            assert np.array_equal(driver.to_host(got), want)
            assert out is None or got is out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 4, "kv_heads": 3}, "3 key heads do not divide 4 heads"),
        ({"num_heads": 4, "kv_heads": 0}, "0 key heads do not divide 4 heads"),
        ({"num_heads": 4, "kv_heads": 2, "head_dim": 3}, "a last dimension of 8 heads of 3"),
        ({"num_heads": 5, "kv_heads": 1}, "a last dimension of 7 heads"),
        ({"num_heads": 4, "head_dim": 2}, "a last dimension of 12 heads of 2"),
        ({"num_heads": 3}, "wanted a last dimension of 3E"),
    ],
)
def test_heads_that_do_not_fit_the_width_are_refused(any_driver, options, message):
    with pytest.raises(ShapeError, match=f"^qkv_split: .*{message}"):
        any_driver.qkv_split(any_driver.alloc_zeros((2, 3, 32)), **options)
    with pytest.raises(ShapeError, match=f"^fused_pad_qkv_split: .*{message}"):
        any_driver.fused_pad_qkv_split(
            any_driver.alloc_zeros((5, 32)), seq_lengths=[2, 3], max_seq=3, **options
        )


def test_fused_forms_refuse_what_their_steps_refuse(any_driver):
    flat = any_driver.alloc_zeros((5, 12))
    with pytest.raises(ShapeError, match="fused_pad_qkv_split: 5 rows, but the lengths sum to 6"):
        any_driver.fused_pad_qkv_split(flat, seq_lengths=[3, 3], max_seq=3, num_heads=2)
    with pytest.raises(ShapeError, match="fused_pad_qkv_split: lengths from 2 to 3, max_seq is 2"):
        any_driver.fused_pad_qkv_split(flat, seq_lengths=[2, 3], max_seq=2, num_heads=2)
    heads = any_driver.alloc_zeros((4, 3, 2))
    with pytest.raises(ShapeError, match=r"fused_reshape_unpad: heads has shape .* \(6, \*, \*\)"):
        any_driver.fused_reshape_unpad(heads, seq_lengths=[2, 3], num_heads=3)
    with pytest.raises(ShapeError, match="fused_reshape_unpad: lengths from 2 to 4, max_seq is 3"):
        any_driver.fused_reshape_unpad(heads, seq_lengths=[2, 4], num_heads=2)
    qkv = any_driver.alloc_zeros((2, 3, 12))
    part = any_driver.alloc_zeros((4, 3, 2))
    with pytest.raises(ShapeError, match="qkv_split: out has 2 tensors, wanted 3"):
        any_driver.qkv_split(qkv, num_heads=2, out=(part, part))
    with pytest.raises(ShapeError, match="qkv_split: out has shape"):
        any_driver.qkv_split(qkv, num_heads=2, out=(part, part, heads_of_another_shape(any_driver)))


def heads_of_another_shape(driver):
    return driver.alloc_zeros((4, 3, 3))
