"""What the pooling kernels do beyond the contract's tests, and the mistakes that must show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drivers import DtypeError, Encoding, ShapeError
from drivers.cuda.launch import SHARED_BYTES_LIMIT
from drivers.cuda.launches import pooling as launches
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tests import oracle
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.device import off_boundary
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, ends, shows

MODES = launches.MODES
STORED = [FLOAT32, FLOAT16, BFLOAT16]
LENGTHS, SKIPS = (9, 1, 20, 3), (2, 0, 5, 2)


@pytest.fixture
def driver():
    """In the order that a missing barrier does not survive."""
    return fiber_driver("warp_greedy")


def batch_of(driver, lengths=LENGTHS, skips=SKIPS):
    rows = [Encoding(np.ones(n, np.int32), pool_skip=skip) for n, skip in zip(lengths, skips)]
    return driver.prepare_batch_unpadded(rows)


def tokens(rng, width, dtype, lengths=LENGTHS):
    return rng.standard_normal((sum(lengths), width)).astype(dtype)


def pool(driver, x, modes=MODES, lengths=LENGTHS, skips=SKIPS, **options):
    return driver.pool(driver.from_host(x), batch_of(driver, lengths, skips), modes, **options)


def expected(x):
    """Every mode in float64, and what float32 may miss it by."""
    want = np.concatenate([oracle.pool(x, LENGTHS, mode, SKIPS) for mode in MODES], axis=1)
    size = float(np.abs(oracle.wide(x)).max()) * float(np.abs(want).max())
    return want, oracle.error_budget(want, np.float32, terms=max(LENGTHS) + 4, scale=size)


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", [1, 31, 256, 264, 520])
def test_every_mode_in_every_storage_type_is_one_launch(driver, rng, dtype, width):
    x = tokens(rng, width, dtype)
    got = pool(driver, x)
    want, budget = expected(x)
    assert driver.launches_total == 1
    assert got.dtype == np.float32
    assert oracle.max_difference(got, want) <= budget
    cut = 2 * width + 1
    unit = pool(driver, x, dim=cut, normalize=True)
    assert driver.launches_total == 3
    assert oracle.max_difference(unit, oracle.l2_normalize(got[:, :cut])) <= 1e-6


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", [31, 264])
def test_the_order_of_the_threads_changes_no_bit(rng, dtype, width):
    x = tokens(rng, width, dtype)
    answers = [pool(fiber_driver(order), x, normalize=True) for order in ORDERS]
    assert all(answer.tobytes() == answers[0].tobytes() for answer in answers)


@pytest.mark.parametrize("width", [31, 264])
def test_a_sequence_has_the_same_bits_whatever_its_batch_mates(driver, rng, dtype, width):
    x = tokens(rng, width, dtype)
    together = pool(driver, x, normalize=True)
    parts = np.split(x, np.cumsum(LENGTHS)[:-1])
    for row, (part, length, skip) in enumerate(zip(parts, LENGTHS, SKIPS)):
        alone = pool(driver, part, lengths=[length], skips=[skip], normalize=True)
        assert alone[0].tobytes() == together[row].tobytes()


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_pieces_of_16_bytes_and_single_values_give_the_same_bits(driver, rng, dtype):
    """The same columns in rows of whole pieces, in wider rows, and off their boundary."""
    x = tokens(rng, 264, dtype)
    want = np.stack(np.split(pool(driver, x), len(MODES), axis=1))
    wider = np.concatenate([x, x[:, :1]], axis=1)
    single = np.stack(np.split(pool(driver, wider), len(MODES), axis=1))
    assert single[:, :, :264].tobytes() == want.tobytes()
    got = driver.pool(off_boundary(driver.device, x), batch_of(driver), MODES)
    assert np.stack(np.split(got, len(MODES), axis=1)).tobytes() == want.tobytes()


def test_more_modes_than_a_launch_has_stand_side_by_side(driver, rng):
    x = tokens(rng, 7, FLOAT16)
    many = MODES * 6  # 36 of them
    got = pool(driver, x, many)
    assert driver.launches_total == 3
    assert np.array_equal(got, np.tile(pool(driver, x), 6))
    assert np.array_equal(pool(driver, x, many, dim=115), got[:, :115])


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_without_tokens_is_zero_and_disturbs_nobody(driver, rng, dtype, mode):
    x = tokens(rng, 31, dtype, (4, 3))
    batch = replace(
        batch_of(driver, (4, 3), (0, 0)),
        seq_lengths=(4, 0, 3),
        pool_skip=(0, 0, 0),
        cu_seqlens=driver.from_host(np.array([0, 4, 4, 7], np.int32)),
    )
    got = driver.pool(driver.from_host(x), batch, [mode])
    assert not got[1].any()
    want = pool(driver, x, [mode], (4, 3), (0, 0))
    assert got[[0, 2]].tobytes() == want.tobytes()


def test_no_sequences_and_no_columns_give_nothing(driver):
    batch = batch_of(driver)
    none = replace(batch, seq_lengths=(), pool_skip=())
    x = driver.device.new((0, 7), FLOAT16)
    assert driver.pool(x, none, ["mean", "max"]).shape == (0, 14)
    assert driver.pool(driver.device.new((33, 0), FLOAT16), batch, ["mean"]).shape == (4, 0)
    assert driver.launches_total == 0


def test_pool_refuses_other_dtypes(driver, rng):
    with pytest.raises(DtypeError, match="pool: got dtype float64, wanted one of float32, float16"):
        pool(driver, tokens(rng, 7, np.float64))
    assert driver.launches_total == 0


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", [31, 264])
def test_padded_batches_in_every_storage_type(driver, rng, dtype, width):
    hidden = rng.standard_normal((3, 21, width)).astype(dtype)
    mask = (rng.random((3, 21)) < 0.7) * rng.uniform(0.5, 2, (3, 21)).astype(np.float32)
    mask[1] = 0
    hidden[mask == 0] = np.nan
    hidden[:, 0] = 3
    wide = oracle.wide(hidden)
    kept = np.where(mask[:, :, None] != 0, wide, 0)
    mean = (kept * oracle.wide(mask)[:, :, None]).sum(axis=1)
    mean /= np.where(mask.any(axis=1), oracle.wide(mask).sum(axis=1), 1)[:, None]
    most = np.where(mask[:, :, None] != 0, wide, -np.inf).max(axis=1)
    most[1] = 0
    inputs = [driver.from_host(array) for array in (hidden, mask)]
    budget = oracle.error_budget(mean, np.float32, terms=23, scale=float(np.abs(kept).max()))
    assert oracle.max_difference(driver.mean_pool(*inputs), mean) <= budget
    assert np.array_equal(driver.max_pool(*inputs), most)
    assert (driver.cls_pool(inputs[0]) == 3).all()


@pytest.mark.parametrize(("width", "blocks"), [(1, 5), (256, 5), (257, 10), (768, 15)])
def test_the_grid_covers_every_sequence_and_column(width, blocks):
    got = launches.pool("pool", sequences=5, width=width, storage=FLOAT16, modes=2)
    assert got.grid == (blocks, 2, 1)
    assert got.block == (256, 1, 1)
    assert got.shared_bytes == 4 * 8 * 257 <= SHARED_BYTES_LIMIT
    narrow = launches.pool_padded("max_pool", sequences=5, width=128, storage=FLOAT32)
    assert narrow.grid == (5, 1, 1)
    assert narrow.shared_bytes == 4 * 8 * 129


def test_more_sequences_than_a_grid_holds_are_refused():
    with pytest.raises(ShapeError, match="pool: 2147483648 blocks of 256 columns, wanted at most"):
        launches.pool("pool", sequences=2**31, width=1, storage=FLOAT16)


# ---- planted mistakes: a place in the source and what to write there

WRONG_ANSWERS = {
    "no barrier before warps are joined": (
        "__syncthreads();  // every warp's share is there", "",
    ),
    "the skipped tokens pooled": ("int first = cu_seqlens[sequence] + skip,",
                                  "int first = cu_seqlens[sequence],"),
    "weights that count from the first token kept": ("RisingWeights{skip + 1}",
                                                     "RisingWeights{1}"),
    "the last token left out": ("token < tokens; token += WARPS",
                                "token < tokens - 1; token += WARPS"),
    "a warp's tokens left out": ("for (int token = warp;", "for (int token = warp + 1;"),
    "the largest value from 0": ("LARGEST ? -INFINITY : 0.0f", "0.0f"),
    "not the root": ("root ? sqrtf(total) : total", "total"),
    "the weights of one warp": ("total += totals[w]", "total = totals[w]"),
    "the values of one warp": ("y = joined<LARGEST>(y, gathered[w * SLICE + c])",
                               "y = gathered[w * SLICE + c]"),
    "the wrong mode": ("MODE_BITS * blockIdx.y &", "MODE_BITS * (1 - blockIdx.y % 2) &"),
    "cls is the last": ("if (mode == MODE_CLS) end", "if (mode == MODE_LAST) end"),
    "columns dealt to lanes otherwise than they are written": (
        "const int col = pieces ? column_of<true>(lane, j) : column_of<false>(lane, j);",
        "const int col = column_of<false>(lane, j);",
    ),
}  # fmt: skip
ENDED = {
    "cu_seqlens read past its end": ("end = cu_seqlens[sequence + 1]",
                                     "end = cu_seqlens[sequence + 2]"),
    "columns read past the last": (
        "min(first_col + lane * VECTOR, width - VECTOR)", "first_col + lane * VECTOR",
    ),
    "columns written past the last": ("c < SLICE && first_col + c < out_cols", "c < SLICE"),
    "shared memory laid out too far": ("gathered + WARPS * SLICE", "gathered + WARPS * SLICE + 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_a_planted_mistake_shows_in_some_order(rng, name):
    x = tokens(rng, 264, FLOAT32)
    want, budget = expected(x)
    edit = Edit("pooling", *WRONG_ANSWERS[name])
    assert shows(
        lambda order: oracle.max_difference(pool(fiber_driver(order, edit), x), want), 20 * budget
    )


@pytest.mark.parametrize("name", ENDED)
def test_a_planted_fault_ends_the_launch_with_a_message(rng, name):
    edit = Edit("pooling", *ENDED[name])
    x = tokens(rng, 264, FLOAT32)
    ends(lambda order: pool(fiber_driver(order, edit), x, ["mean"]), "pool", "touches memory")
