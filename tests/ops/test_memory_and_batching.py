"""Memory, copies to and from the host, and batches: flat, padded and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import DriverError, DtypeError, Encoding, ShapeError
from drivers.types import MASK_VALUE
from tests.ops.contract import nans

RAGGED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LENGTHS = st.lists(st.integers(1, 33), min_size=1, max_size=7)


def encodings(lengths, start=1):
    """Sequences of running ids, so that every token of the batch is another one."""
    ids = np.split(np.arange(start, start + sum(lengths), dtype=np.int32), np.cumsum(lengths)[:-1])
    return [Encoding(row) for row in ids]


@pytest.mark.parametrize("shape", [(1,), (7, 31), (2, 3, 1025)])
def test_alloc_zeros_is_zero_in_the_asked_dtype(driver, dtype, shape):
    got = driver.alloc_zeros(shape, dtype)
    assert got.shape == shape
    assert got.dtype == dtype
    assert not driver.to_host(got).any()


def test_alloc_zeros_is_float32_unless_told(driver):
    assert driver.alloc_zeros((3,)).dtype == np.float32


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32])
def test_host_round_trip_keeps_values_and_dtype(driver, rng, kind):
    array = (rng.standard_normal((7, 33)) * 100).astype(kind)
    back = driver.to_host(driver.from_host(array.copy()))
    assert back.dtype == kind
    assert np.array_equal(back, array)


def test_a_clone_of_a_tensor_is_independent(driver, rng, dtype):
    before = rng.standard_normal((3, 31)).astype(dtype)
    x = driver.from_host(before.copy())
    twin = driver.clone_tensor(x)
    driver.residual_add(x, x, out=x)
    assert twin.dtype == dtype
    assert np.array_equal(driver.to_host(twin), before)
    assert np.array_equal(driver.to_host(x), before * 2)


@pytest.mark.parametrize("shape", [(1,), (7, 33), (2, 3, 1025)])
@pytest.mark.parametrize("stored", [np.float32, np.float16])
@pytest.mark.parametrize("asked", [np.float32, np.float16])
def test_a_cast_rounds_to_nearest_and_widens_exactly(driver, rng, stored, asked, shape):
    x = (rng.standard_normal(shape) * 100).astype(stored)
    for out in (None, nans(driver, shape, asked)):
        got = driver.cast(driver.from_host(x.copy()), asked, out=out)
        assert out is None or got is out
        assert got.dtype == asked
        assert np.array_equal(driver.to_host(got), x.astype(asked))


def test_a_cast_is_infinite_beyond_float16_and_keeps_what_is_no_number(driver):
    x = np.array([65519, 65520, -1e30, np.inf, np.nan, 1e-30], np.float32)
    got = driver.to_host(driver.cast(driver.from_host(x), np.float16))
    assert got[[0, 1, 2, 3, 5]].tolist() == [65504, np.inf, -np.inf, np.inf, 0]
    assert np.isnan(got[4])


@pytest.mark.parametrize("kind", [np.float64, np.int32])
def test_a_cast_knows_float32_and_float16_alone(any_driver, kind):
    with pytest.raises(DtypeError, match=f"cast: to dtype {np.dtype(kind)}"):
        any_driver.cast(any_driver.alloc_zeros((3,)), kind)


@pytest.mark.parametrize("kind", [np.float64, np.int32])
def test_a_cast_refuses_other_tensors_by_their_dtype(driver, kind):
    with pytest.raises(DtypeError, match=f"cast: got dtype {np.dtype(kind)}"):
        driver.cast(driver.from_host(np.zeros(3, kind)), np.float32)
    with pytest.raises(DtypeError, match="cast: out has dtype float32, wanted float16"):
        driver.cast(driver.alloc_zeros((3,)), np.float16, out=driver.alloc_zeros((3,)))


def test_a_clone_of_a_driver_is_another_driver_of_the_same_kind(any_driver):
    if any_driver.name.startswith("cuda"):
        with pytest.raises(DriverError, match="a device has one driver"):
            any_driver.new_for_clone()
        return
    twin = any_driver.new_for_clone()
    assert twin is not any_driver
    assert type(twin) is type(any_driver)
    assert twin.alloc_zeros((2, 3)).shape == (2, 3)


def test_preferred_tokens_and_dtypes_are_declared(any_driver):
    assert any_driver.preferred_tokens > 0
    assert np.dtype(np.float32) in any_driver.dtypes
    assert np.dtype(np.float16) in any_driver.dtypes


def test_prepare_batch_unpadded_lays_tokens_end_to_end(driver):
    rows = [
        Encoding(np.array([5, 6, 7], np.int32), np.array([0, 0, 1], np.int32)),
        Encoding(np.array([9], np.int32)),
        Encoding(np.array([3, 2], np.int32), pool_skip=1),
    ]
    batch = driver.prepare_batch_unpadded(rows)
    host = driver.to_host
    assert host(batch.input_ids).tolist() == [5, 6, 7, 9, 3, 2]
    assert host(batch.token_type_ids).tolist() == [0, 0, 1, 0, 0, 0]
    assert host(batch.position_ids).tolist() == [0, 1, 2, 0, 0, 1]
    assert host(batch.cu_seqlens).tolist() == [0, 3, 4, 6]
    assert host(batch.int_mask).tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert host(batch.attn_mask).tolist() == [
        [0, 0, 0],
        [0, MASK_VALUE, MASK_VALUE],
        [0, 0, MASK_VALUE],
    ]
    assert batch.seq_lengths == (3, 1, 2)
    assert batch.pool_skip == (0, 0, 1)
    assert (batch.max_seq, batch.padded, batch.batch, batch.total_tokens) == (3, False, 3, 6)


def test_prepare_batch_pads_ids_types_and_positions_with_zero(driver):
    rows = [
        Encoding(np.array([5, 6], np.int32), np.array([1, 1], np.int32)),
        Encoding(np.array([9, 8, 7], np.int32)),
    ]
    batch = driver.prepare_batch(rows, 4)
    host = driver.to_host
    assert host(batch.input_ids).tolist() == [5, 6, 0, 0, 9, 8, 7, 0]
    assert host(batch.token_type_ids).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert host(batch.position_ids).tolist() == [0, 1, 0, 0, 0, 1, 2, 0]
    assert host(batch.cu_seqlens).tolist() == [0, 2, 5]
    assert host(batch.int_mask).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert (batch.max_seq, batch.padded, batch.total_tokens) == (4, True, 5)


def test_every_id_of_a_batch_is_int32_and_the_float_mask_float32(driver):
    for batch in (
        driver.prepare_batch(encodings([3, 1]), 5),
        driver.prepare_batch_unpadded(encodings([3, 1])),
    ):
        for name in ("input_ids", "token_type_ids", "position_ids", "cu_seqlens", "int_mask"):
            assert getattr(batch, name).dtype == np.int32, name
        assert batch.attn_mask.dtype == np.float32


@RAGGED
@given(lengths=LENGTHS, extra=st.integers(0, 5))
def test_padded_and_flat_batches_hold_the_same_tokens(driver, lengths, extra):
    rows, max_seq = encodings(lengths), max(lengths) + extra
    flat, padded = driver.prepare_batch_unpadded(rows), driver.prepare_batch(rows, max_seq)
    real = driver.to_host(padded.int_mask).astype(bool).reshape(-1)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        spread = driver.to_host(getattr(padded, name))
        assert np.array_equal(spread[real], driver.to_host(getattr(flat, name))), name
        assert not spread[~real].any(), name
    assert flat.max_seq == max(lengths)
    assert padded.attn_mask.shape == (len(lengths), max_seq)


@RAGGED
@given(lengths=LENGTHS, extra=st.integers(0, 5), width=st.sampled_from([1, 7, 33]))
def test_pad_writes_every_position_and_unpad_brings_the_tokens_back(driver, lengths, extra, width):
    max_seq, total = max(lengths) + extra, sum(lengths)
    for dtype in (np.float32, np.float16):
        flat = (np.arange(total * width, dtype=np.float32) % 2039 + 1).reshape(total, width)
        flat = flat.astype(dtype)  # exact in float16, and never zero
        out = nans(driver, (len(lengths), max_seq, width), dtype)
        padded = driver.pad_to_batch(
            driver.from_host(flat.copy()), seq_lengths=lengths, max_seq=max_seq, out=out
        )
        assert padded is out
        host = driver.to_host(padded)
        for row, tokens in enumerate(np.split(flat, np.cumsum(lengths)[:-1])):
            assert np.array_equal(host[row, : len(tokens)], tokens)
            assert not host[row, len(tokens) :].any()
        out = nans(driver, flat.shape, dtype)
        back = driver.unpad_from_batch(padded, seq_lengths=lengths, out=out)
        assert back is out
        assert np.array_equal(driver.to_host(back), flat)


def test_pad_and_unpad_without_out_keep_the_dtype(driver, rng, dtype):
    flat = rng.standard_normal((4, 31)).astype(dtype)
    padded = driver.pad_to_batch(driver.from_host(flat.copy()), seq_lengths=[1, 3], max_seq=7)
    back = driver.unpad_from_batch(padded, seq_lengths=[1, 3])
    assert padded.dtype == back.dtype == dtype
    assert np.array_equal(driver.to_host(back), flat)


def test_unpad_leaves_poison_in_the_padding_behind(driver, rng, dtype):
    padded = np.full((2, 5, 31), np.nan, dtype)
    padded[0, :2] = rng.standard_normal((2, 31))
    padded[1, :5] = rng.standard_normal((5, 31))
    got = driver.unpad_from_batch(driver.from_host(padded.copy()), seq_lengths=[2, 5])
    assert np.array_equal(driver.to_host(got), np.concatenate([padded[0, :2], padded[1]]))


def test_a_sequence_of_length_zero_is_all_padding(driver):
    flat = np.ones((2, 3), np.float32)
    padded = driver.pad_to_batch(driver.from_host(flat), seq_lengths=[0, 2], max_seq=2)
    assert driver.to_host(padded).sum(axis=(1, 2)).tolist() == [0, 6]


def one(length):
    return Encoding(np.ones(length, np.int32))


@pytest.mark.parametrize(
    ("rows", "max_seq", "message"),
    [
        ([], 4, "no encodings"),
        ([one(2), one(0)], 4, r"row 1 has 0 tokens, wanted 1 to 4"),
        ([one(2), one(3), one(5)], 4, r"row 2 has 5 tokens, wanted 1 to 4"),
        (
            [Encoding(np.ones(3, np.int32), np.zeros(2, np.int32))],
            4,
            "row 0 has 3 input ids but 2 type ids",
        ),
        ([Encoding(np.ones(3, np.int32), pool_skip=3)], 4, "row 0 leaves 3 of 3 tokens out"),
        ([Encoding(np.ones(3, np.int32), pool_skip=-1)], 4, "row 0 leaves -1 of 3 tokens out"),
    ],
    ids=["empty", "no_tokens", "too_long", "type_ids", "all_skipped", "negative_skip"],
)
def test_prepare_batch_names_the_row_it_refuses(any_driver, rows, max_seq, message):
    with pytest.raises(ShapeError, match=f"prepare_batch: .*{message}"):
        any_driver.prepare_batch(rows, max_seq)


@pytest.mark.parametrize("rows", [[], [one(0)], [one(3), one(0)]], ids=["none", "empty", "later"])
def test_prepare_batch_unpadded_refuses_empty_batches_and_rows(any_driver, rows):
    with pytest.raises(ShapeError, match=r"prepare_batch_unpadded: (no encodings|row .* 0 tokens)"):
        any_driver.prepare_batch_unpadded(rows)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_input_ids_that_are_not_int32_are_refused_not_wrapped(any_driver, kind):
    ids = np.array([1, 2**31 + 5], dtype=kind)
    with pytest.raises(DtypeError, match=np.dtype(kind).name):
        any_driver.prepare_batch_unpadded([Encoding(ids)])


def test_pack_stores_weights_in_the_asked_dtype(driver, rng, dtype):
    weight = rng.standard_normal((7, 31)).astype(np.float32)
    packed = driver.pack(weight, "table", dtype)
    assert packed.dtype == dtype
    assert np.array_equal(driver.to_host(packed), weight.astype(dtype))


def test_pack_takes_weights_that_are_not_contiguous(driver, rng):
    weight = rng.standard_normal((31, 7)).astype(np.float32)
    x = rng.standard_normal((3, 31)).astype(np.float32)
    got = driver.linear(driver.from_host(x), driver.pack(weight.T, "linear", np.float32))
    assert np.allclose(driver.to_host(got), x @ weight, atol=1e-5)


@pytest.mark.parametrize(("role", "shape"), [("vector", (3, 4)), ("linear", (3,)), ("table", (3,))])
def test_pack_refuses_a_weight_that_does_not_fit_its_role(any_driver, role, shape):
    with pytest.raises(ShapeError, match=rf"pack: .*'{role}' has shape \({shape[0]},"):
        any_driver.pack(np.zeros(shape, np.float32), role, np.float32)


@pytest.mark.parametrize("kind", [np.float64, np.int8])
def test_pack_refuses_a_dtype_the_driver_does_not_have(any_driver, kind):
    have = ", ".join(str(dtype) for dtype in any_driver.dtypes)
    message = f"{any_driver.name}: no storage type {np.dtype(kind)}, only {have}"
    with pytest.raises(DtypeError, match=message):
        any_driver.pack(np.zeros((3, 4), np.float32), "linear", kind)
