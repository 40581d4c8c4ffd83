"""Attention on tensor cores against float64, and the mistakes that the fibers must show."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drivers.cuda.launches.flash_attention import HEAD_DIMS
from tests import oracle
from tests.cuda_fibers.attention_cases import attend, budget_of, case, run_attention
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, ends, shows
from tests.ops.test_attention_options import LENGTHS as RAGGED
from tests.ops.test_attention_options import OPTIONS, Case

LENGTHS = (33, 1, 150, 70)
UNFORGIVING = ("shuffled", "warp_greedy", "warp_greedy_reversed")
WINDOWS = [
    (None, 0), (0, 0), (1, 1), (7, 7), (31, 33), (40, None), (None, 40), (0, None), (64, 0),
    (90, 1), (1000, 2**31 - 1),
]  # fmt: skip


@pytest.fixture(params=[np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def half(request):
    """Each storage type that tensor cores take."""
    return np.dtype(request.param)


def sizes(head_dim, num_heads=2, kv_heads=2):
    return {
        "num_heads": num_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
    }


def check(rng, dtype, order, heads, lengths=LENGTHS, **options):
    qkv = case(rng, dtype, heads, lengths)
    want = attend(qkv, lengths, **heads, **options)
    driver = fiber_driver(order)
    got = run_attention(driver, qkv, lengths, **heads, **options)
    assert driver.launches_total == 1
    assert got.dtype == dtype
    assert oracle.max_difference(got, want) <= budget(qkv, want, heads, lengths, options)


def budget(qkv, want, heads, lengths, options):
    bias = options.get("position_bias", np.zeros(1))
    bias = float(np.abs(bias[np.isfinite(bias)]).max(initial=0))
    return budget_of(qkv, want, heads, lengths=lengths, stored_weights=True, bias=bias)


@pytest.mark.parametrize("order", UNFORGIVING)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_size(rng, half, order, head_dim):
    check(rng, half, order, sizes(head_dim))


@pytest.mark.parametrize("head_dim", [32, 64, 256])
@pytest.mark.parametrize("lengths", [(1,), (15, 16, 17), (63, 64, 65), (127, 129, 2)])
def test_lengths_around_those_of_the_tiles(rng, half, head_dim, lengths):
    check(rng, half, "warp_greedy", sizes(head_dim), lengths)
    check(rng, half, "warp_greedy", sizes(head_dim), lengths, window_left=16, window_right=0)


@pytest.mark.parametrize(("num_heads", "kv_heads"), [(6, 2), (4, 1), (3, 3)])
def test_grouped_heads_share_keys_and_values_in_a_row(rng, half, num_heads, kv_heads):
    for head_dim in (32, 128):
        check(rng, half, "warp_greedy", sizes(head_dim, num_heads, kv_heads))


@pytest.mark.parametrize(("left", "right"), WINDOWS)
def test_windows_and_causal(rng, half, left, right):
    for head_dim, order in ((32, "shuffled"), (64, "warp_greedy")):
        check(rng, half, order, sizes(head_dim), window_left=left, window_right=right)


@pytest.mark.parametrize("positions", [150, 200])
def test_a_bias_by_distance_is_added_to_the_scaled_score(rng, half, positions):
    bias = (4 * rng.standard_normal((2, 2 * positions - 1))).astype(np.float32)
    for head_dim in (32, 256):
        check(rng, half, "warp_greedy", sizes(head_dim), position_bias=bias)
        window = {"window_left": 16, "window_right": 0}
        check(rng, half, "warp_greedy", sizes(head_dim), position_bias=bias, **window)


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.5, 3.0])
def test_any_scale(rng, half, scale):
    check(rng, half, "warp_greedy", sizes(64) | {"scale": scale}, window_left=20)


def blind_bias(positions, seen):
    """(2, 2 P - 1): only the keys at least `seen` before a query have a weight."""
    bias = np.zeros((2, 2 * positions - 1), np.float32)
    bias[:, positions - 1 - seen + 1 :] = -np.inf
    return bias


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_query_that_sees_nothing_gives_zeros(rng, half, head_dim):
    heads, bias = sizes(head_dim), blind_bias(150, 5)
    check(rng, half, "warp_greedy", heads, position_bias=bias)
    got = run_attention(
        fiber_driver("shuffled"), case(rng, half, heads, LENGTHS), LENGTHS, **heads,
        position_bias=bias,
    )  # fmt: skip
    blind = np.concatenate([np.arange(n) < 5 for n in LENGTHS])
    assert (got[blind] == 0).all()
    assert (got[~blind] != 0).any(axis=1).all()


@pytest.mark.parametrize("seed", range(12))
def test_any_combination_of_options(half, seed):
    rng = np.random.default_rng(seed)
    lengths = tuple(rng.integers(1, 140, rng.integers(1, 5)).tolist())
    heads = sizes(int(rng.choice(HEAD_DIMS)), *[(1, 1), (3, 3), (4, 2), (6, 1)][rng.integers(4)])
    options = {}
    for side in ("window_left", "window_right"):
        if rng.random() < 0.5:
            options[side] = int(rng.integers(0, 100))
    if rng.random() < 0.3:
        positions = max(lengths) + int(rng.integers(0, 4))
        shape = (heads["num_heads"], 2 * positions - 1)
        options["position_bias"] = rng.standard_normal(shape).astype(np.float32)
    check(rng, half, UNFORGIVING[seed % 3], heads, lengths, **options)


@pytest.mark.parametrize("head_dim", [32, 128])
def test_a_sequence_of_nan_reaches_no_other(rng, half, head_dim):
    heads = sizes(head_dim)
    qkv = case(rng, half, heads, LENGTHS)
    clean = run_attention(fiber_driver("warp_greedy"), qkv, LENGTHS, **heads)
    ends = np.cumsum(LENGTHS)
    for sequence, end in enumerate(ends):
        poisoned = qkv.copy()
        rows = np.arange(len(qkv))
        own = (rows >= end - LENGTHS[sequence]) & (rows < end)
        poisoned[own] = np.nan
        got = run_attention(fiber_driver("warp_greedy"), poisoned, LENGTHS, **heads)
        assert np.isnan(got[own].astype(np.float32)).all()
        assert np.array_equal(got[~own], clean[~own])


@pytest.mark.parametrize("window", [{}, {"window_left": 9, "window_right": 30}])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_a_row_has_the_same_bits_whatever_its_batch_mates(rng, half, head_dim, window):
    heads = sizes(head_dim)
    qkv = case(rng, half, heads, LENGTHS)
    cuts = np.cumsum(LENGTHS)[:-1]
    together = run_attention(fiber_driver("shuffled"), qkv, LENGTHS, **heads, **window)
    for own, rows in zip(np.split(together, cuts), np.split(qkv, cuts), strict=True):
        alone = run_attention(fiber_driver("warp_greedy"), rows, (len(rows),), **heads, **window)
        assert np.array_equal(alone, own)


def test_the_order_of_the_threads_changes_no_bit(rng, half):
    heads = sizes(64, 4, 2)
    qkv = case(rng, half, heads, LENGTHS)
    answers = [run_attention(fiber_driver(order), qkv, LENGTHS, **heads) for order in ORDERS]
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["rope", "partial rope", "rope by sequence", "qk norm", "all"])
def test_normed_and_rotated_heads_go_to_the_tensor_cores(driver, rng, name, dim):
    attention = Case(rng, np.dtype(np.float16), RAGGED, dim, **OPTIONS[name])
    want = attention.want()
    assert oracle.max_error(driver, attention.run(driver), want) <= attention.budget(want)
    rotated_on_the_way = name in ("rope", "rope by sequence")
    assert driver.launches_total == (1 if rotated_on_the_way else 2)


# ---- planted mistakes: a place in the source, what to write there, and the options that show it

COMPLETE = "__syncthreads();  // the tile is complete, and every warp is done with the one before"
NEIGHBOURS = {"window_left": 1, "window_right": 1}
LEFT, RIGHT = {"window_left": 40}, {"window_right": 40}
BLIND = {"position_bias": np.repeat(blind_bias(150, 5), 2, axis=0)}
BIAS = {"position_bias": 3 * np.sin(np.arange(4 * 299, dtype=np.float32)).reshape(4, 299)}
WRONG_ANSWERS = {
    "no barrier between the tiles": (COMPLETE, ";", {}),
    "no wait for the copies": ("wait_for_copies<0>();", "", {}),
    "a wait for all groups but the one that counts": (
        "wait_for_copies<0>();", "wait_for_copies<1>();", {},
    ),
    "the next tile copied onto this one": ("(1 - buffer) * 2 * TILE", "buffer * 2 * TILE", {}),
    "always the first buffer": ("keys = shared_memory + buffer * 2 * TILE", "keys = shared_memory",
                                {}),
    "values copied onto the keys": ("copy_rows<DIM, DIM, KEYS, THREADS>(next + TILE, v",
                                    "copy_rows<DIM, DIM, KEYS, THREADS>(next, v", {}),
    "values not transposed": ("load_matrices_transposed(v", "load_matrices(v", {}),
    "padding of the last tile seen": ("last_key < end_key &&", "", {}),
    "one key too few at the end": ("min(end_key, row + right + 1)",
                                   "min(end_key - 1, row + right + 1)", {}),
    "left edge one too narrow": ("begin = row - left", "begin = row - left + 1", NEIGHBOURS),
    "left edge one too wide": ("begin = row - left", "begin = row - left - 1", NEIGHBOURS),
    "right edge one too narrow": ("row + right + 1)", "row + right)", NEIGHBOURS),
    "right edge one too wide": ("row + right + 1)", "row + right + 2)", NEIGHBOURS),
    "first keys of a window left out": ("max(0, first_row - left)", "max(0, first_row - left + 1)",
                                        LEFT),
    "last keys of a window left out": ("min(first_row + ROWS, length) + right",
                                       "min(first_row + ROWS, length) + right - 1", NEIGHBOURS),
    "a tile skipped for its last key": ("last_key < warp_first - left",
                                        "last_key <= warp_first - left", NEIGHBOURS),
    "a tile skipped for its first key": ("tile > warp_last + right", "tile >= warp_last + right",
                                         NEIGHBOURS),
    "no mask where the first row sees the tile": ("tile >= warp_last - left",
                                                  "tile >= warp_first - left", LEFT),
    "no mask where the last row sees the tile": ("last_key <= warp_first + right",
                                                 "last_key <= warp_last + right", RIGHT),
    "last query row left out": ("(total[r]), row < length", "(total[r]), row < length - 1", {}),
    "neighbours exchange the wrong block": ("odd ? block[0] : block[1], 1",
                                            "odd ? block[1] : block[0], 1", {}),
    "not scaled": ("*= scale * LOG2_E", "*= LOG2_E", {}),
    "scores to the base of e": ("*= scale * LOG2_E", "*= scale", {}),
    "bias to the base of e": ("bias[column] * LOG2_E", "bias[column]", BIAS),
    "bias of another distance": ("bias[column] * LOG2_E", "bias[column - 1] * LOG2_E", BIAS),
    "sum not rescaled": ("total *= rescale;", "", {}),
    "context not rescaled": ("context[m][2 * r + 1] *= rescale;", "", {}),
    "peak of a lane alone": ("highest = row_max(highest);", "", {}),
    "sum of a lane alone": ("row_sum(total[r])", "total[r]", {}),
    "keys of the wrong head": ("head * kv_heads / num_heads", "head % kv_heads", {}),
    "values of the wrong head": ("(num_heads + kv_heads + kv_head) * DIM",
                                 "(num_heads + kv_heads) * DIM", {}),
    "nothing seen is NaN": ("highest == -INFINITY ? 0.0f : highest", "highest", BLIND),
    "a sum of nothing divides": ("sum == 0.0f ? 0 :", "", BLIND),
}  # fmt: skip
ENDED = {
    "cu_seqlens read past its end": (
        "cu_seqlens[sequence + 1] - start", "cu_seqlens[sequence + 2] - start", "touches memory",
    ),
    "keys read past the last sequence": (
        "const bool exists = first + row < end;", "const bool exists = true;", "touches memory",
    ),
    "queries read past the last sequence": (
        "row < length ? *(const unsigned*)source : 0", "*(const unsigned*)source",
        "touches memory",
    ),
    "rows written past the last sequence": (
        "row_sum(total[r]), row < length", "row_sum(total[r]), true", "touches memory",
    ),
    "rows of the tile off their boundaries": ("STRIDE = DIM + 8", "STRIDE = DIM + 4", "boundary"),
    "a third buffer": (
        "keys = shared_memory + buffer *", "keys = shared_memory + (buffer + 2) *",
        "outside the shared memory",
    ),
    "a barrier that some warps skip": (
        COMPLETE, "if (warp != 1) __syncthreads();", "waits at a barrier that others never reach",
    ),
    "products that some lanes skip": (
        "if (!none) {", "if (!none && lane != 5) {", "another operation than its warp",
    ),
}  # fmt: skip


def mutant(rng, before, after):
    """The narrowest kernel with one place changed, and a case with grouped heads for it."""
    only = ("flash_attention_32",)
    edit = Edit("flash_attention", before, after, until="ROTATING_ATTENTION(32)", only=only)
    heads = sizes(32, 4, 2)
    return edit, heads, case(rng, np.dtype(np.float16), heads, LENGTHS)


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_a_planted_mistake_shows_in_some_order(rng, name):
    before, after, options = WRONG_ANSWERS[name]
    edit, heads, qkv = mutant(rng, before, after)
    want = attend(qkv, LENGTHS, **heads, **options)

    def error(order):
        got = run_attention(fiber_driver(order, edit), qkv, LENGTHS, **heads, **options)
        return oracle.max_difference(got, want)

    assert shows(error, 10 * budget(qkv, want, heads, LENGTHS, options), UNFORGIVING)


@pytest.mark.parametrize("name", ENDED)
def test_a_planted_fault_ends_the_launch_with_a_message(rng, name):
    before, after, message = ENDED[name]
    edit, heads, qkv = mutant(rng, before, after)
    ends(
        lambda order: run_attention(fiber_driver(order, edit), qkv, LENGTHS, **heads),
        "flash_attention_32",
        message,
        UNFORGIVING,
    )


def test_values_of_the_next_sequence_would_be_seen_to_leave_a_trace(rng):
    """A weight of zero times NaN: what keeps it away is that no other sequence is read."""
    lengths = (17, 100)
    edit, heads, _ = mutant(
        rng,
        "TILE, v, v_stride, first_key, end_key);",
        "TILE, v, v_stride, first_key, end_key + 9);",
    )
    qkv = case(rng, np.dtype(np.float16), heads, lengths)
    qkv[17:] = np.nan
    assert np.isfinite(run_attention(fiber_driver("shuffled"), qkv, lengths, **heads)[:17]).all()
    assert np.isnan(run_attention(fiber_driver("shuffled", edit), qkv, lengths, **heads)[:17]).all()
