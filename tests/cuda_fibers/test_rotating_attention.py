"""Attention that rotates q and k on their way in: against float64, and against two steps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drivers import ShapeError
from drivers.cuda.launches import flash_attention
from tests import oracle
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, ends, shows
from tests.ops.test_attention_options import OPTIONS, Case

LENGTHS = (33, 1, 70, 150)
UNFORGIVING = ("shuffled", "warp_greedy", "warp_greedy_reversed")
HEAD_DIMS = flash_attention.ROTATING_HEAD_DIMS
WAYS = {
    "grouped": {"heads": 4, "kv": 2},
    "a table a sequence": {"by_sequence": True},
    "causal": {"causal": True},
    "narrow window": {"left": 9, "right": 5},
    "wide window": {"left": 64, "right": 70},
    "bias": {"bias": 3},
    "one key head in a window": {"kv": 1, "left": 40, "by_sequence": True},
}


@pytest.fixture(params=[np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def half(request):
    """Each storage type that tensor cores take."""
    return np.dtype(request.param)


def rotating(rng, dtype=np.float16, dim=32, lengths=LENGTHS, **options):
    return Case(rng, np.dtype(dtype), lengths, dim, **{"rope": 1.0, "heads": 2, **options})


def run(case, order="warp_greedy", edit=None, launches=1):
    """The answer on the host, from so many launches."""
    driver = fiber_driver(order, edit)
    out = driver.to_host(case.run(driver))
    assert driver.launches_total == launches
    return out


@pytest.mark.parametrize("order", UNFORGIVING)
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_every_head_size(rng, order, dim):
    case = rotating(rng, dim=dim, heads=4, kv=2)
    want = case.want()
    assert oracle.max_difference(run(case, order), want) <= case.budget(want)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("way", WAYS)
def test_the_bits_are_those_of_a_rotation_beforehand(rng, half, monkeypatch, way, dim):
    case = rotating(rng, half, dim, **WAYS[way])
    at_once = run(case)
    monkeypatch.setattr(flash_attention, "rotates", lambda **_: False)
    assert np.array_equal(run(case, launches=2), at_once)


@pytest.mark.parametrize("lengths", [(1,), (15, 16, 17), (63, 64, 65), (127, 129, 2)])
def test_lengths_around_those_of_the_tiles(rng, lengths):
    for dim, window in ((32, {}), (64, {"left": 16, "right": 0})):
        case = rotating(rng, dim=dim, lengths=lengths, **window)
        want = case.want()
        assert oracle.max_difference(run(case, "shuffled"), want) <= case.budget(want)


@pytest.mark.parametrize("by_sequence", [False, True])
def test_a_row_has_the_same_bits_whatever_its_batch_mates(rng, half, by_sequence):
    together = rotating(rng, half, 64, by_sequence=by_sequence)
    cuts = np.cumsum(LENGTHS)[:-1]
    rows, answers = np.split(together.qkv, cuts), np.split(run(together, "shuffled"), cuts)
    for i, length in enumerate(LENGTHS):
        alone = rotating(rng, half, 64, (length,), by_sequence=by_sequence)
        alone.qkv = rows[i]
        alone.rope = tuple(t[i : i + 1] if by_sequence else t for t in together.rope)
        assert np.array_equal(run(alone), answers[i])


def test_the_order_of_the_threads_changes_no_bit(rng, half):
    for dim in (32, 96):
        case = rotating(rng, half, dim, left=40)
        answers = [run(case, order) for order in ORDERS]
        assert all(np.array_equal(answer, answers[0]) for answer in answers)


def test_table_rows_behind_a_sequence_leave_no_trace(rng, half):
    case = rotating(rng, half, by_sequence=True)
    clean = run(case)
    for table in case.rope:
        for row, length in enumerate(LENGTHS):
            table[row, length:] = np.nan
    assert np.array_equal(run(case), clean)


def test_a_sequence_of_nan_reaches_no_other(rng, half):
    case = rotating(rng, half, 64)
    clean = run(case)
    case.qkv[34:104] = np.nan
    got = run(case)
    assert np.isnan(got[34:104].astype(np.float32)).all()
    others = np.r_[:34, 104:254]
    assert np.array_equal(got[others], clean[others])


# ---- who rotates


@pytest.mark.parametrize(
    ("max_seq", "head_dim", "pairs", "left", "right", "wanted"),
    [
        (512, 64, 32, None, None, True),
        (513, 64, 32, None, None, False),
        (1024, 32, 16, None, 0, True),
        (1025, 32, 16, None, 0, False),
        (8192, 64, 32, 64, 64, True),
        (8192, 128, 64, 224, 224, True),
        (8192, 128, 64, 224, 225, False),
        (8192, 64, 32, 64, None, False),
        (100, 64, 0, None, None, False),
        (100, 64, 16, None, None, False),
        (100, 256, 128, None, None, False),
        (100, 48, 24, None, None, False),
    ],
)
def test_few_query_tiles_of_a_key_and_heads_rotated_whole(
    max_seq, head_dim, pairs, left, right, wanted
):
    got = flash_attention.rotates(
        max_seq=max_seq, head_dim=head_dim, pairs=pairs, window_left=left, window_right=right
    )
    assert got is wanted


def test_the_launch_is_that_of_attention_but_for_the_kernel():
    sizes = {"batch": 3, "max_seq": 150, "num_heads": 2}
    for dim in HEAD_DIMS:
        plain = flash_attention.flash_attention(head_dim=dim, **sizes)
        got = flash_attention.flash_attention(head_dim=dim, rotating=True, **sizes)
        assert got.kernel == f"rotating_attention_{dim}"
        assert (got.grid, got.block, got.shared_bytes) == (
            plain.grid, plain.block, plain.shared_bytes,
        )  # fmt: skip
    with pytest.raises(ShapeError, match="head_dim is 256, wanted one of 32, 64, 96, 128$"):
        flash_attention.flash_attention(head_dim=256, rotating=True, **sizes)


@pytest.mark.parametrize("name", ["partial rope", "qk norm", "all"])
def test_what_is_normed_or_rotated_in_part_takes_a_launch_beforehand(rng, name):
    run(Case(rng, np.dtype(np.float16), (7, 1, 33), 64, **OPTIONS[name]), launches=2)


def test_a_longer_sequence_takes_a_launch_beforehand(rng):
    run(rotating(rng, dim=64, lengths=(513,), heads=1), launches=2)
    run(rotating(rng, dim=64, lengths=(513,), heads=1, left=64, right=64))


# ---- planted mistakes: a place in the source, and what to write there

ROTATION = "if constexpr (ROTATE) rotate_rows<DIM, KEYS, THREADS>(keys, cos, sin, tile, end_key);"
COMPLETE = "__syncthreads();  // the tile is complete, and every warp is done with the one before"
WRONG_ANSWERS = {
    "keys of a wrong pair": ("load_pack<8>(at + PAIRS)", "load_pack<8>(at + 8)"),
    "keys of a pair the other way round": (
        "store_pack(at, x);\n            store_pack(at + PAIRS, y);",
        "store_pack(at, y);\n            store_pack(at + PAIRS, x);",
    ),
    "queries of a wrong pair": ("load_pack<2>(source + PAIRS)", "load_pack<2>(source + 2)"),
    "queries of a pair the other way round": (
        "queries[step][i] = turned[0];", "queries[step][i] = turned[1];",
    ),
    "a wrong sign": ("__fsub_rn(", "__fadd_rn("),
    "the other wrong sign": ("y = __fadd_rn(", "y = __fsub_rn("),
    "half of a pair turned twice": ("__fmul_rn(x, sin)", "__fmul_rn(turned, sin)"),
    "keys not rotated": (ROTATION, ""),
    "rotated before the tile has landed": (
        f"wait_for_copies<0>();\n        {ROTATION}", f"{ROTATION}\n        wait_for_copies<0>();",
    ),
    "rotated behind the barrier": (
        f"{ROTATION}\n        {COMPLETE}", f"{COMPLETE}\n        {ROTATION}",
    ),
    "no barrier behind the rotation": (COMPLETE, ""),
    "pairs that other threads copied": ("ROTATE ? DIM / 2 : DIM;", "DIM;"),
    "the other buffer rotated": (ROTATION, ROTATION.replace("keys,", "keys + TILE,")),
    "the last key not rotated": ("first + row >= end)", "first + row >= end - 1)"),
    "values rotated as rows behind the keys": ("if (row >= KEYS || first", "if (first"),
    "positions of keys from the tile's start": ("(size_t)(first + row) * PAIRS",
                                                "(size_t)row * PAIRS"),
    "positions of queries from the warp's first": ("angle = (size_t)row * PAIRS",
                                                   "angle = (size_t)(row - first_row) * PAIRS"),
    "one table for all": ("(size_t)sequence * table_rows * (DIM / 2);\n        sin",
                          "0;\n        sin"),
    "rows copied over what follows the keys": ("if (KEYS % ROWS != 0 && row >= KEYS) break;", ""),
}  # fmt: skip
ENDED = {
    "positions counted among all tokens": (
        "cos += (size_t)sequence * table_rows * (DIM / 2)", "cos += (size_t)start * (DIM / 2)",
        {}, "touches memory",
    ),
    "keys behind the sequence rotated": (
        "if (row >= KEYS || first + row >= end) break;", "if (row >= KEYS) break;",
        {"by_sequence": True}, "touches memory",
    ),
    "queries behind the sequence rotated": (
        "if (row < length) {", "if (true) {", {"by_sequence": True}, "touches memory",
    ),
}  # fmt: skip


def planted(before, after):
    """The narrowest kernel with one place changed."""
    only = ("rotating_attention_32",)
    return Edit("flash_attention", before, after, until="\nFLASH_ATTENTION(64)", only=only)


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_a_planted_mistake_shows_in_some_order(rng, name):
    edit = planted(*WRONG_ANSWERS[name])
    case = rotating(rng, heads=4, kv=2, by_sequence=True)
    want = case.want()
    bound = 10 * case.budget(want)

    def error(order):
        return oracle.max_difference(run(case, order, edit), want)

    assert shows(error, bound, UNFORGIVING)


@pytest.mark.parametrize("name", ENDED)
def test_a_planted_fault_ends_the_launch_with_a_message(rng, name):
    before, after, options, message = ENDED[name]
    case = rotating(rng, **options)
    edit = planted(before, after)
    ends(lambda order: run(case, order, edit), "rotating_attention_32", message, UNFORGIVING)
