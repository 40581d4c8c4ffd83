"""What the look-up kernels do beyond the contract's tests, and the mistakes that must show."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from drivers import DtypeError, Encoding, ShapeError
from drivers.cuda.id_ranges import IdRanges
from drivers.cuda.launches import lookups as launches
from drivers.cuda.launches.norm_row import HELD
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.types import EmbeddingTable, NormWeights
from tests import oracle
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.device import FiberDevice
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, ends, shows

WIDTHS = [8, 64, 256, 520, 768, 1000, 1280, 2048, 3072, 4096, 4104, 31]
STORED = [FLOAT32, FLOAT16, BFLOAT16]
LENGTHS = (4, 1, 6)
IDS = ("input_ids", "token_type_ids", "position_ids")
EPS = 1e-5


@pytest.fixture
def driver():
    """One kernel here has a barrier, and a test of its own; for the others one order will do."""
    return fiber_driver("shuffled")


def case(rng, width, dtype):
    """Encodings, three tables by the ids that index them, and a norm's weight and bias."""
    rows = [
        Encoding(rng.integers(0, 23, n).astype(np.int32), rng.integers(0, 2, n).astype(np.int32))
        for n in LENGTHS
    ]
    tables = [rng.standard_normal((size, width)).astype(dtype) for size in (23, 2, 6)]
    return rows, tables, [rng.standard_normal(width).astype(dtype) for _ in range(2)]


def summed(rows, tables):
    """The sum of the tables' rows in float64."""
    ids = [
        np.concatenate([row.input_ids for row in rows]),
        np.concatenate([row.type_ids for row in rows]),
        np.concatenate([np.arange(len(row)) for row in rows]),
    ]
    return sum(oracle.wide(table)[index] for table, index in zip(tables, ids))


def embed(driver, rows, tables, weights=None, kind="layer"):
    entries = [EmbeddingTable(driver.from_host(table), name) for table, name in zip(tables, IDS)]
    norm = None
    if weights is not None:
        weight, bias = map(driver.from_host, weights)
        norm = NormWeights(weight, bias if kind == "layer" else None, EPS, kind=kind)
    return driver.embed(driver.prepare_batch_unpadded(rows), entries, norm)


def budget_of(y, want, weights, dtype):
    scale = float(np.abs(y).max() / y.std(axis=-1).min() * np.abs(oracle.wide(weights[0])).max())
    return oracle.error_budget(want, dtype, terms=y.shape[-1] + 8, scale=scale + 4)


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_build_in_every_storage_type_is_one_launch(driver, rng, dtype, width):
    """The sum is rounded nowhere but at the end."""
    rows, tables, weights = case(rng, width, dtype)
    for count in (1, 2, 3):
        y = summed(rows, tables[:count])
        before = driver.launches_total
        plain = embed(driver, rows, tables[:count])
        layer = embed(driver, rows, tables[:count], weights)
        rms = embed(driver, rows, tables[:count], weights, "rms")
        assert driver.launches_total == before + 3
        assert plain.dtype == layer.dtype == rms.dtype == dtype
        assert oracle.max_difference(plain, y) <= oracle.error_budget(y, dtype, terms=count)
        for got, want in (
            (layer, oracle.layer_norm(y, *weights, eps=EPS)),
            (rms, oracle.rms_norm(y, weights[0], eps=EPS)),
        ):
            assert oracle.max_difference(got, want) <= budget_of(y, want, weights, dtype)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_a_row_goes_to_the_narrowest_build_that_holds_it(dtype):
    def kernel(cols):
        return launches.embed("embed", rows=5, cols=cols, storage=dtype, wide=0).kernel

    piece = 16 // dtype.itemsize
    for count in HELD:
        assert kernel(count * 32 * piece) == f"embed_held_{count}"
        assert kernel(count * 32 * piece - 1) == "embed_plain"
    assert kernel(16 * 32 * piece + piece) == "embed_plain"


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", [256, 1000])
def test_held_and_read_again_give_the_same_bits(rng, monkeypatch, dtype, width):
    inputs = case(rng, width, dtype)
    held = [embed(fiber_driver("shuffled"), *inputs), embed(fiber_driver("shuffled"), *inputs[:2])]
    monkeypatch.setattr(launches, "held", lambda *_: None)
    again = [embed(fiber_driver("shuffled"), *inputs), embed(fiber_driver("shuffled"), *inputs[:2])]
    assert [x.tobytes() for x in held] == [x.tobytes() for x in again]


@pytest.mark.parametrize("width", [31, 768])
def test_the_order_of_the_threads_changes_no_bit(rng, dtype, width):
    inputs = case(rng, width, dtype)
    answers = [embed(fiber_driver(order), *inputs) for order in ORDERS]
    assert all(answer.tobytes() == answers[0].tobytes() for answer in answers)


@pytest.mark.parametrize("width", [31, 768])
def test_a_sequence_has_the_same_bits_whatever_its_batch_mates(driver, rng, dtype, width):
    rows, tables, weights = case(rng, width, dtype)
    together = np.split(embed(driver, rows, tables, weights), np.cumsum(LENGTHS)[:-1])
    for row, want in zip(rows, together):
        assert embed(driver, [row], tables, weights).tobytes() == want.tobytes()


@pytest.mark.parametrize("narrow", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("width", [31, 256])
def test_each_tensor_may_be_float32_beside_another_storage_type(driver, rng, narrow, width):
    rows, tables, weights = case(rng, width, np.float32)
    tables, weights = (
        [array.astype(narrow).astype(np.float32) for array in arrays]  # what both types hold
        for arrays in (tables, weights)
    )
    y = summed(rows, tables)
    want = oracle.layer_norm(y, *weights, eps=EPS)
    for choice in range(32):
        kinds = [(narrow, FLOAT32)[choice >> bit & 1] for bit in range(5)]
        stored = [array.astype(kind) for array, kind in zip((*tables, *weights), kinds)]
        got = embed(driver, rows, stored[:3], stored[3:])
        assert got.dtype == kinds[0]
        assert oracle.max_difference(got, want) <= budget_of(y, want, weights, got.dtype), kinds


def test_a_sum_in_place_is_rounded_once_whatever_the_dtypes(driver, rng):
    hidden = rng.standard_normal((5, 33)).astype(np.float32)
    table = rng.standard_normal((7, 33)).astype(np.float16)
    ids = rng.integers(0, 7, 5).astype(np.int32)
    want = oracle.wide(hidden) + oracle.wide(table)[ids]
    up = driver.from_host
    got = driver.add_embeddings(up(hidden), up(table), up(ids))
    assert got.dtype == np.float32
    assert oracle.max_difference(got, want) <= oracle.error_budget(want, np.float32)
    out = driver.device.new((5, 33), np.float16)
    driver.add_embeddings(up(hidden), up(table), up(ids), out=out)
    assert oracle.max_difference(out, want) <= oracle.error_budget(want, np.float16)


def test_more_tables_than_a_launch_has_are_composed(driver, rng):
    rows, tables, weights = case(rng, 31, np.dtype(np.float32))
    names = (*IDS, "input_ids", "position_ids")
    five = [*tables, tables[0], tables[2]]
    entries = [EmbeddingTable(driver.from_host(table), name) for table, name in zip(five, names)]
    norm = NormWeights(*map(driver.from_host, weights), EPS)
    got = driver.embed(driver.prepare_batch_unpadded(rows), entries, norm)
    y = summed(rows, [2 * oracle.wide(tables[0]), tables[1], 2 * oracle.wide(tables[2])])
    want = oracle.layer_norm(y, *weights, eps=EPS)
    assert oracle.max_difference(got, want) <= budget_of(y, want, weights, np.float32)


def test_refusals_come_before_any_launch(driver, rng):
    rows, tables, (weight, bias) = case(rng, 8, FLOAT16)
    with pytest.raises(ShapeError, match=r"embed: weight has shape \(7,\), wanted \(8\)"):
        embed(driver, rows, tables, (weight[:7], bias))
    with pytest.raises(ShapeError, match=r"embed: bias has shape \(9,\), wanted \(8\)"):
        embed(driver, rows, tables, (weight, np.ones(9, np.float16)))
    with pytest.raises(DtypeError, match="embed: got dtypes bfloat16 and float16, wanted one"):
        embed(driver, rows, [tables[0], tables[1].astype(BFLOAT16)])
    with pytest.raises(DtypeError, match="embed: got dtype float64"):
        embed(driver, rows, tables, (weight.astype(np.float64), bias))
    assert driver.launches_total == 0


# ---- ids outside their table


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 31, 256, 257, 3001])
def test_the_first_id_outside_is_found_in_every_order(order, count):
    driver = fiber_driver(order)
    table = driver.alloc_zeros((9, 3), np.float16)
    ids = (np.arange(count) % 9).astype(np.int32)
    driver.embedding_lookup(driver.from_host(ids), table)
    for first, value in ((count - 1, 9), (0, -7), (count // 2, 2**31 - 1)):
        bad = ids.copy()
        bad[first], bad[first + 1 : first + 300 : 7] = value, -1
        with pytest.raises(ShapeError, match=f"id {value} at position {first} is outside a table"):
            driver.embedding_lookup(driver.from_host(bad), table)


def test_ids_of_unknown_range_are_checked_on_the_device_with_the_same_answer(driver, rng, dtype):
    rows, tables, weights = case(rng, 31, dtype)
    known = embed(driver, rows, tables, weights)
    driver._id_ranges = IdRanges()
    driver._remember_ids = lambda *_: None
    before = driver.launches_total
    assert embed(driver, rows, tables, weights).tobytes() == known.tobytes()
    assert driver.launches_total == before + 4  # a check a table


def test_known_ids_outside_a_table_are_named_before_the_sum_is_launched(driver, rng):
    rows, tables, weights = case(rng, 31, FLOAT16)
    bad = Encoding(np.array([3, 23, 24], np.int32))
    with pytest.raises(ShapeError, match="embed: id 23 at position 12 is outside a table of 23"):
        embed(driver, [*rows, bad], tables, weights)
    with pytest.raises(ShapeError, match="embed: id 6 at position 6 is outside a table of 6 rows"):
        embed(driver, [Encoding(np.zeros(7, np.int32))], tables, weights)


def test_what_is_known_of_ids_goes_with_their_array():
    ranges = IdRanges()
    ids = np.array([3, 0, 8], np.int32)
    ranges.remember(ids, ids)
    assert ranges.within(ids, 9)
    assert not ranges.within(ids, 8)
    assert not ranges.within(ids.copy(), 9)
    below = np.array([-1, 2], np.int32)
    ranges.remember(below, below)
    assert not ranges.within(below, 9)
    del ids, below
    gc.collect()
    assert not ranges._known
    ranges.remember(np.zeros(0, np.int32), np.zeros(0, np.int32))
    assert not ranges._known


@pytest.mark.parametrize("bad", [-1, 23, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("width", [31, 256])
def test_an_id_that_passed_unchecked_reads_nothing_and_shows(driver, rng, width, bad):
    """Were an array of known ids written to, its rows would be NaN, and no others."""
    rows, tables, weights = case(rng, width, FLOAT16)
    batch = driver.prepare_batch_unpadded(rows)
    batch.input_ids[3] = bad
    entries = [EmbeddingTable(driver.from_host(table), name) for table, name in zip(tables, IDS)]
    for norm in (None, NormWeights(*map(driver.from_host, weights), EPS)):
        got = driver.embed(batch, entries, norm)
        assert np.flatnonzero(np.isnan(got).any(axis=1)).tolist() == [3]
        assert np.isnan(got[3]).all()


# ---- planted mistakes: a place in the source and what to write there

CUT = {"until": "EMBED(embed_held_4, 4)", "only": ("embed_plain", "embed_held_3")}
WRONG_ANSWERS = {
    "the second table's first row for all": (
        "                sum.add(entry);",
        "                sum.add(i == 1 ? entry - from[1] : entry);",
    ),
    "the third table by the second's ids": ("{ids2, table2, size2}", "{ids1, table2, size2}"),
    "the first table read over the sum": (
        "if (i == 0 && !call.addend)\n", "if (!call.addend)\n",
    ),
    "no norm": ("    if (call.weight)\n        apply", "    if (false)\n        apply"),
}  # fmt: skip
OUTSIDE = {
    "ids not held within the table": ("id < 0 || id >= size ? -1 :", "", "touches memory"),
    "one id too many held to be inside": ("id >= size ? -1", "id > size ? -1", "touches memory"),
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_a_planted_mistake_shows(rng, name):
    rows, tables, weights = case(rng, 520, FLOAT16)
    y = summed(rows, tables)
    want = oracle.layer_norm(y, *weights, eps=EPS)
    edit = Edit("lookups", *WRONG_ANSWERS[name], **CUT)

    def error(order):
        return oracle.max_difference(embed(fiber_driver(order, edit), rows, tables, weights), want)

    assert shows(error, 20 * budget_of(y, want, weights, np.float16), ["shuffled"])


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_planted_read_outside_a_table_ends_the_launch(rng, name):
    before, after, message = OUTSIDE[name]
    rows, tables, _ = case(rng, 520, FLOAT16)

    def run(order):
        driver = fiber_driver(order, Edit("lookups", before, after, **CUT))
        batch = driver.prepare_batch_unpadded(rows)
        batch.input_ids[3] = 23
        driver.embed(batch, [EmbeddingTable(driver.from_host(tables[0]), "input_ids")])

    ends(run, "embed_held_3", message, ["shuffled"])


def found_by(device):
    """What is found among ids whose 70th and 326th, which one thread looks at, are outside."""
    ids = np.zeros(327, np.int32)
    ids[[70, 326]] = 9
    found = device.new((2,), np.int64)
    arguments = (found, device.upload(ids), np.int64(327), np.int32(9))
    device.launch("lookups", FLOAT32, launches.first_outside(), arguments)
    return found.tolist()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("__syncthreads();  // every warp's place is there", ";"),
        ("if (threadIdx.x % LANES == 0) places", "if (threadIdx.x == 0) places"),
        ("first = min(first, places[warp])", "first = places[warp]"),
        ("first = min(first, __shfl", "first = max(first, __shfl"),
        ("ids[i] >= size) first = i", "ids[i] > size) first = i"),
        ("i < none && first == none;", "i < none;"),
    ],
)
def test_a_mistake_in_the_search_shows_in_some_order(before, after):
    edit = Edit("lookups", before, after, until="// One of the tables", only=("first_outside",))
    assert all(found_by(FiberDevice(order)) == [70, 9] for order in ORDERS)
    assert any(found_by(FiberDevice(order, edit)) != [70, 9] for order in ORDERS)
