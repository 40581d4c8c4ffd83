"""Memory, padding and heads: every storage type and mixture, and the mistakes that must show."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from drivers.types import MASK_VALUE
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.device import off_boundary
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, answers_well
from tests.ops.contract import nans

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)
KINDS = [F32, F16, BF16]
LENGTHS = (3, 0, 7, 1)
SEQ = 8
SPLITS = [(4, 2, 16), (3, 1, 7), (2, 2, 9)]  # N, KV, D


@pytest.fixture
def driver():
    """One order: no thread of these kernels waits for another."""
    return fiber_driver("shuffled")


def case(rng, kind, width, lengths=LENGTHS):
    """Flat tokens (T, width)."""
    return rng.standard_normal((sum(lengths), width)).astype(kind)


def padded_of(flat, lengths=LENGTHS, seq=SEQ):
    """Tokens a sequence at a time, zeros behind them: (B, S, width)."""
    out = np.zeros((len(lengths), seq, flat.shape[1]), flat.dtype)
    for row, tokens in enumerate(np.split(flat, np.cumsum(lengths)[:-1])):
        out[row, : len(tokens)] = tokens
    return out


def heads_of(padded, heads):
    """(B, S, heads * D) -> (B * heads, S, D), a head at a time."""
    batch, seq, width = padded.shape
    parts = [np.split(row, heads, axis=1) for row in padded]
    return np.array(parts).reshape(batch * heads, seq, width // heads)


def qkv_of(padded, num_heads, kv_heads, dim):
    """q, k and v of (B, S, (N + 2 KV) D), by head."""
    ends = np.cumsum([num_heads, kv_heads]) * dim
    parts = np.split(padded, ends, axis=2)
    return [heads_of(part, n) for part, n in zip(parts, (num_heads, kv_heads, kv_heads))]


# ---- memory


@pytest.mark.parametrize(
    "kind", [np.int32, np.int64, np.uint8, np.float64, F32, F16, BF16], ids=str
)
@pytest.mark.parametrize("shape", [(1,), (7, 31), (2, 3, 1025), (256, 16)])
def test_zeros_and_copies_of_any_dtype_and_size(driver, rng, kind, shape):
    zeros = driver.alloc_zeros(shape, kind)
    assert zeros.dtype == kind
    assert zeros.shape == shape
    assert not driver.to_host(zeros).any()
    x = (100 * rng.random(shape)).astype(kind)
    twin = driver.clone_tensor(driver.from_host(x))
    assert twin.dtype == x.dtype
    assert np.array_equal(driver.to_host(twin), x)


def test_a_copy_of_a_view_is_the_views(driver, rng):
    x = rng.standard_normal((5, 7, 3)).astype(F16)
    whole = driver.from_host(x)
    for index in range(5):
        view = driver.matrix_at(whole, index)
        assert np.array_equal(driver.to_host(driver.clone_tensor(view)), x[index])
        driver.cast(driver.clone_tensor(driver.from_host(x[4 - index])), F16, out=view)
        assert np.array_equal(driver.to_host(whole)[index], x[4 - index])
        driver.cast(driver.from_host(x[index]), F16, out=view)
    assert np.array_equal(driver.to_host(whole), x)


def test_a_matrix_that_is_not_there_is_refused(driver):
    with pytest.raises(ShapeError, match="matrix_at: no matrix 2 among the 2"):
        driver.matrix_at(driver.alloc_zeros((2, 3, 4)), 2)


@pytest.mark.parametrize("shape", [(1,), (7, 31), (3, 1025), (16, 16)])
@pytest.mark.parametrize("asked", KINDS, ids=str)
@pytest.mark.parametrize("stored", KINDS, ids=str)
def test_a_cast_between_any_two_storage_types(driver, rng, stored, asked, shape):
    x = (100 * rng.standard_normal(shape)).astype(stored)
    for out in (None, nans(driver, shape, asked)):
        got = driver.cast(driver.from_host(x), asked, out=out)
        assert out is None or got is out
        assert got.dtype == asked
        assert np.array_equal(driver.to_host(got), x.astype(F32).astype(asked))


def test_a_cast_of_what_the_narrow_type_cannot_hold(driver):
    x = np.array([65519, 65520, -1e30, 3.4e38, np.inf, np.nan, 1e-45, -0.0], F32)
    got = driver.to_host(driver.cast(driver.from_host(x), F16))
    assert got.tolist()[:5] == [65504, np.inf, -np.inf, np.inf, np.inf]
    assert np.isnan(got[5])
    assert np.signbit(got[7])
    narrow = driver.cast(driver.from_host(x), BF16)
    got = driver.to_host(narrow).astype(F32)
    assert got[3:5].tolist() == [np.inf, np.inf]  # 3.4e38 is nearer to 2^128 than to what is below
    assert np.isnan(got[5])
    got = driver.to_host(driver.cast(narrow, F16))
    assert got.tolist()[1:5] == [np.inf, -np.inf, np.inf, np.inf]


def test_float32_to_bfloat16_and_float16_round_ties_to_even(driver):
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], F32)
    got = driver.to_host(driver.cast(driver.from_host(halfway), BF16)).astype(F32)
    assert got.tolist() == [1, 1 + 2**-6, 1 + 2**-7]
    halfway = np.array([2049, 2051, 2049.001], F32)
    got = driver.to_host(driver.cast(driver.from_host(halfway), F16))
    assert got.tolist() == [2048, 2052, 2050]


# ---- layout


@pytest.mark.parametrize("out_kind", KINDS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("width", [16, 1, 7, 33])
def test_padding_and_back_in_any_two_storage_types(driver, rng, kind, out_kind, width):
    flat = case(rng, kind, width)
    shape = (len(LENGTHS), SEQ, width)
    options = {"seq_lengths": LENGTHS}
    if {kind, out_kind} == {F16, BF16}:
        with pytest.raises(DtypeError, match="pad_to_batch: got dtypes bfloat16 and float16"):
            driver.pad_to_batch(
                driver.from_host(flat), max_seq=SEQ, out=nans(driver, shape, out_kind), **options
            )
        return
    for out in (None, nans(driver, shape, out_kind)):
        got = driver.pad_to_batch(driver.from_host(flat), max_seq=SEQ, out=out, **options)
        assert np.array_equal(driver.to_host(got), padded_of(flat).astype(got.dtype))
    assert got is out
    for back in (None, nans(driver, flat.shape, kind)):
        tokens = driver.unpad_from_batch(got, out=back, **options)
        assert tokens.dtype == (out_kind if back is None else kind)
        assert np.array_equal(driver.to_host(tokens).astype(out_kind), flat.astype(out_kind))


@pytest.mark.parametrize(("heads", "kv", "dim"), SPLITS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_heads_of_every_storage_type(driver, rng, kind, heads, kv, dim):
    flat = case(rng, kind, (heads + 2 * kv) * dim)
    wanted = qkv_of(padded_of(flat), heads, kv, dim)
    sizes = {"num_heads": heads, "kv_heads": kv, "head_dim": dim}
    outs = [tuple(nans(driver, part.shape, asked) for part, asked in zip(wanted, types))
            for types in ((kind, F32, kind), (F32, kind, F32))]  # fmt: skip
    for out in (None, *outs):
        fused = driver.fused_pad_qkv_split(
            driver.from_host(flat), seq_lengths=LENGTHS, max_seq=SEQ, out=out, **sizes
        )
        split = driver.qkv_split(driver.from_host(padded_of(flat)), **sizes)
        for part, want in zip((*fused, *split), wanted * 2):
            assert np.array_equal(driver.to_host(part), want.astype(part.dtype))
    q = driver.from_host(wanted[0])
    tokens = driver.attn_reshape(q, num_heads=heads)
    assert np.array_equal(driver.to_host(tokens), padded_of(flat)[:, :, : heads * dim])
    assert np.array_equal(driver.to_host(driver.split_heads(tokens, num_heads=heads)), wanted[0])
    back = driver.fused_reshape_unpad(q, seq_lengths=LENGTHS, num_heads=heads)
    assert np.array_equal(driver.to_host(back), flat[:, : heads * dim])


def test_poison_behind_a_sequence_stays_there(driver, rng, dtype):
    heads = np.full((2 * len(LENGTHS), SEQ, 9), np.nan, dtype)
    for row, length in enumerate(LENGTHS):
        heads[2 * row : 2 * row + 2, :length] = rng.standard_normal((2, length, 9))
    got = driver.fused_reshape_unpad(driver.from_host(heads), seq_lengths=LENGTHS, num_heads=2)
    assert got.shape == (sum(LENGTHS), 18)
    assert not np.isnan(driver.to_host(got)).any()


def test_what_is_read_keeps_its_bits(driver):
    """A move is no arithmetic: every float16 there is, NaNs with their bits too."""
    bits = np.arange(2**16, dtype=np.uint16).reshape(-1, 64)
    padded = driver.pad_to_batch(driver.from_host(bits.view(F16)), seq_lengths=[1024], max_seq=1024)
    assert np.array_equal(driver.to_host(padded)[0].view(np.uint16), bits)
    back = driver.unpad_from_batch(padded, seq_lengths=[1024])
    assert np.array_equal(driver.to_host(back).view(np.uint16), bits)


def test_a_view_off_a_boundary_is_moved_as_any_other(driver, rng):
    flat = case(rng, F16, 64, lengths=(2, 4))
    view = off_boundary(driver.device, flat)
    got = driver.pad_to_batch(view, seq_lengths=[2, 4], max_seq=5)
    assert np.array_equal(driver.to_host(got), padded_of(flat, (2, 4), 5))
    assert np.array_equal(driver.to_host(driver.clone_tensor(view)), flat)
    wide = driver.cast(view, F32, out=off_boundary(driver.device, flat.astype(F32)))
    assert np.array_equal(driver.to_host(wide), flat)


def test_the_mask_of_any_width(driver, rng):
    int_mask = rng.integers(0, 2, (7, 257)).astype(np.int32)
    got = driver.build_attn_mask(driver.from_host(int_mask))
    assert got.dtype == F32
    assert np.array_equal(driver.to_host(got), np.where(int_mask, 0, MASK_VALUE))


def test_dtypes_that_no_kernel_stores_are_refused(driver):
    options = {"seq_lengths": [2]}
    for kind in (np.int32, np.float64):
        match = f"got dtype {np.dtype(kind)}, wanted one of float32, float16, bfloat16"
        with pytest.raises(DtypeError, match=f"pad_to_batch: {match}"):
            driver.pad_to_batch(driver.alloc_zeros((2, 8), kind), max_seq=2, **options)
        with pytest.raises(DtypeError, match=f"unpad_from_batch: {match}"):
            driver.unpad_from_batch(driver.alloc_zeros((1, 2, 8), kind), **options)
        with pytest.raises(DtypeError, match=f"attn_reshape: {match}"):
            driver.attn_reshape(driver.alloc_zeros((1, 2, 8), kind), num_heads=1)
        with pytest.raises(DtypeError, match=f"split_heads: {match}"):
            driver.split_heads(driver.alloc_zeros((1, 2, 8), kind), num_heads=1)


def test_the_order_of_the_threads_changes_no_bit(rng, dtype):
    flat = case(rng, dtype, 8 * 7)
    answers = []
    for order in ORDERS:
        driver = fiber_driver(order)
        parts = driver.fused_pad_qkv_split(
            driver.from_host(flat), seq_lengths=LENGTHS, max_seq=SEQ, num_heads=4, kv_heads=2
        )
        back = driver.fused_reshape_unpad(parts[0], seq_lengths=LENGTHS, num_heads=4)
        other = BF16 if dtype == F16 else F16
        tensors = [*parts, back, driver.cast(back, other), driver.clone_tensor(back)]
        answers.append([driver.to_host(x) for x in tensors])
    for answer in answers[1:]:
        assert all(np.array_equal(got, want) for got, want in zip(answer, answers[0]))


def test_nothing_is_launched_for_nothing(driver):
    empty = driver.alloc_zeros((0, 24))
    driver.clone_tensor(driver.cast(empty, F16))
    driver.pad_to_batch(empty, seq_lengths=[], max_seq=3)
    driver.unpad_from_batch(driver.alloc_zeros((2, 0, 24)), seq_lengths=[0, 0])
    driver.fused_pad_qkv_split(empty, seq_lengths=[0, 0], max_seq=0, num_heads=2)
    driver.split_heads(driver.alloc_zeros((2, 0, 24)), num_heads=3)
    driver.build_attn_mask(driver.alloc_zeros((0, 3), np.int32))
    assert driver.launches_total == 0


# ---- planted mistakes: a place in the source, what to write there


def right(run, driver, rng):
    """Whether `run` gives what it wants without leaving its memory."""

    def answer():
        got, want = run(driver, rng)
        return all(np.array_equal(driver.to_host(x), y) for x, y in zip(got, want, strict=True))

    return answers_well(answer)


def run_split(driver, rng):
    flat = case(rng, F32, 8 * 9)
    wanted = [part.astype(F16) for part in qkv_of(padded_of(flat), 4, 2, 9)]
    outs = tuple(nans(driver, part.shape, F16) for part in wanted)
    got = driver.fused_pad_qkv_split(
        driver.from_host(flat), seq_lengths=LENGTHS, max_seq=SEQ, num_heads=4, kv_heads=2, out=outs
    )
    return got, wanted


def run_join(driver, rng):
    flat = case(rng, F32, 3 * 9)
    heads = heads_of(padded_of(flat), 3)
    out = nans(driver, flat.shape, F16)
    options = {"seq_lengths": LENGTHS, "num_heads": 3}
    got = driver.fused_reshape_unpad(driver.from_host(heads), out=out, **options)
    return [got], [flat.astype(F16)]


def run_padded_split(driver, rng):
    padded = rng.standard_normal((3, SEQ, 2 * 9)).astype(F32)
    return [driver.split_heads(driver.from_host(padded), num_heads=2)], [heads_of(padded, 2)]


def run_mask(driver, rng):
    int_mask = rng.integers(0, 3, (5, 61)).astype(np.int32)
    got = driver.build_attn_mask(driver.from_host(int_mask))
    return [got], [np.where(int_mask, 0, MASK_VALUE).astype(F32)]


def run_memory(driver, rng):
    x = rng.integers(1, 250, (3, 7)).astype(np.uint8)
    zeros = driver.alloc_zeros((3, 7), np.uint8)
    return [zeros, driver.clone_tensor(driver.from_host(x))], [np.zeros_like(x), x]


def run_cast(driver, rng):
    x = rng.standard_normal((3, 7)).astype(BF16)
    return [driver.cast(driver.from_host(x), F16)], [x.astype(F32).astype(F16)]


MISTAKES = {
    (run_split, "layout"): {
        "padding not written": ("write_chunk(out, out_wide, to, place.count, Chunk{});", ";"),
        "one token too many": (
            "if (place.position >= own.length) {",
            "if (place.position > own.length) {",
        ),
        "v where k is": ("is_q ? q : is_k ? k : v", "is_q ? q : is_k ? v : k"),
        "key heads not counted from 0": (
            "(is_q ? 0 : is_k ? num_heads :",
            "(is_q ? 0 : is_k ? 0 :",
        ),
        "groups of N heads everywhere": (
            "place.sequence * out_heads",
            "place.sequence * num_heads",
        ),
        "q not converted": ("place.count, chunk, tokens_wide);", "place.count, chunk, out_wide);"),
        "every type taken for the other": ("to_wide == wide ? chunk", "to_wide != wide ? chunk"),
        "the start of another sequence": (
            "const int start = cu_seqlens[sequence];",
            "const int start = cu_seqlens[sequence ? sequence - 1 : 0];",
        ),
        "the length read past the end": (
            "cu_seqlens[sequence + 1] - start",
            "cu_seqlens[sequence + 2] - start",
        ),
        "heads of D + 1 values": (
            "place.position) * head_dim + place.dim;\n\n",
            "place.position) * (head_dim + 1) + place.dim;\n\n",
        ),
    },
    (run_padded_split, "layout"): {
        "padded tokens of one sequence": ("return {sequence * seq, seq};", "return {0, seq};"),
    },
    (run_join, "layout"): {
        "padding joined too": ("if (place.position >= own.length) return;", ""),
        "a token's heads in one place": ("(token * num_heads + place.head)", "(token * num_heads)"),
        "heads by position": (
            "(group * seq + place.position) * head_dim + place.dim;\n    const size_t token",
            "(group + place.position) * head_dim + place.dim;\n    const size_t token",
        ),
    },
    (run_mask, "layout"): {
        "a mask of ones alone": ("int_mask[i] != 0", "int_mask[i] == 1"),
        "the mask past its end": ("if (i < count) out[i]", "out[i]"),
    },
    (run_memory, "memory"): {
        "zeros by 16 past the end": (
            "if (bytes - first >= (long long)sizeof(Bytes16) && on_16_bytes(out + first)) {",
            "if (bytes > first) {",
        ),
        "no zeros at the end": ("i < end; i++) out[i] = 0;", "i < end - 1; i++) out[i] = 0;"),
        "a copy without its end": (
            "i < end; i++) out[i] = x[i];",
            "i < end - 1; i++) out[i] = x[i];",
        ),
    },
    (run_cast, "memory"): {
        "one type's bits as the other's": ("widen_values<FROM>(values", "widen_values<TO>(values"),
    },
}


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place, edits in MISTAKES.items() for name in edits]
)
def test_a_planted_mistake_shows(driver, place, name):
    run, theme = place
    assert right(run, driver, np.random.default_rng(3))
    mutant = fiber_driver("shuffled", Edit(theme, *MISTAKES[place][name]))
    assert not right(run, mutant, np.random.default_rng(3))
