"""What the kernel does beyond plain attention, and the mistakes that the fibers must show."""

from __future__ import annotations

import numpy as np
import pytest

from tests import oracle
from tests.cuda_fibers.attention_cases import (
    LENGTHS,
    PlainDriver,
    attend,
    budget_of,
    case,
    run_attention,
)
from tests.cuda_fibers.engine import ORDERS, FiberError
from tests.cuda_fibers.planted import Edit, ends, shows

PLAIN = {"num_heads": 2, "kv_heads": 2, "head_dim": 32, "scale": 32**-0.5}


def check(rng, dtype, order, heads, **options):
    qkv = case(rng, dtype, heads)
    want = attend(qkv, LENGTHS, **heads, **options)
    got = run_attention(PlainDriver(order), qkv, LENGTHS, **heads, **options)
    assert got.dtype == dtype
    assert oracle.max_difference(got, want) <= budget_of(qkv, want, heads)


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256, 1, 31, 33, 65, 97, 127, 255])
def test_every_head_size(rng, dtype, head_dim):
    heads = {"num_heads": 2, "kv_heads": 2, "head_dim": head_dim, "scale": head_dim**-0.5}
    check(rng, dtype, "warp_greedy", heads)


@pytest.mark.parametrize(("num_heads", "kv_heads"), [(6, 2), (4, 1), (3, 3)])
def test_grouped_heads_share_keys_and_values_in_a_row(rng, dtype, num_heads, kv_heads):
    check(rng, dtype, "warp_greedy", PLAIN | {"num_heads": num_heads, "kv_heads": kv_heads})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("left", "right"), [(None, 0), (0, 0), (7, 7), (31, 33), (0, None), (64, 1), (1000, 1000)]
)
def test_windows_and_causal(rng, dtype, order, left, right):
    check(rng, dtype, order, PLAIN, window_left=left, window_right=right)


@pytest.mark.parametrize("positions", [70, 128])
def test_a_bias_by_distance_is_added_to_the_scaled_score(rng, dtype, positions):
    bias = (4 * rng.standard_normal((2, 2 * positions - 1))).astype(np.float32)
    check(rng, dtype, "warp_greedy", PLAIN, position_bias=bias)
    check(rng, dtype, "warp_greedy", PLAIN, position_bias=bias, window_left=16, window_right=0)


def test_the_order_of_the_threads_changes_no_bit(rng, dtype):
    qkv = case(rng, dtype, PLAIN)
    answers = [run_attention(PlainDriver(order), qkv, LENGTHS, **PLAIN) for order in ORDERS]
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


def test_a_row_has_the_same_bits_whatever_its_batch_mates(driver, rng, dtype):
    heads = {"num_heads": 2, "kv_heads": 2, "head_dim": 31}
    qkv, cuts = case(rng, dtype, heads), np.cumsum(LENGTHS)[:-1]
    together = run_attention(driver, qkv, LENGTHS, num_heads=2)
    for own, rows in zip(np.split(together, cuts), np.split(qkv, cuts), strict=True):
        assert np.array_equal(run_attention(driver, rows, (len(rows),), num_heads=2), own)


# ---- planted mistakes: a place in the source, what to write there, and the options that show it

CAUSAL = {"window_right": 0}
LOCAL = {"window_left": 7, "window_right": 7}
WRONG_ANSWERS = {
    "no barrier after a tile is loaded": ("__syncthreads();  // the tile is complete", ";", {}),
    "no barrier before a tile is replaced": (
        "__syncthreads();  // every warp is done with the tile", ";", {},
    ),
    "no warp barrier after the weights": (
        "__syncwarp();  // the row's weights are complete", ";", {},
    ),
    "one key too few at the end": ("key < end_key &&", "key < end_key - 1 &&", {}),
    "padding of the last tile seen": ("key < end_key &&", "", {}),
    "left edge one too narrow": ("key >= row - window_left", "key > row - window_left", LOCAL),
    "left edge one too wide": ("key >= row - window_left", "key >= row - window_left - 1", LOCAL),
    "right edge one too narrow": ("key <= row + window_right", "key < row + window_right", LOCAL),
    "right edge one too wide": ("key <= row + window_right", "key <= row + window_right + 1",
                                LOCAL),
    "last keys of a window left out": ("last_row + window_right + 1", "last_row + window_right",
                                       CAUSAL),
    "first keys of a window left out": ("max(0, first_row - window_left)",
                                        "max(0, first_row - window_left + 1)", LOCAL),
    "last query row left out": ("if (row >= length) continue;  // the whole warp",
                                "if (row >= length - 1) continue;", {}),
    "not scaled": ("product * scale", "product", {}),
    "sum not rescaled": ("total[r] * rescale + weight", "total[r] + weight", {}),
    "context not rescaled": ("context[r][c] * rescale", "context[r][c]", {}),
    "keys of the wrong head": ("head * kv_heads / num_heads", "head % kv_heads", {}),
}  # fmt: skip
ENDED = {
    "cu_seqlens read past its end": (
        "cu_seqlens[sequence + 1] - start", "cu_seqlens[sequence + 2] - start", "touches memory",
    ),
    "length of the sequence before": (
        "cu_seqlens[sequence + 1] - start",
        "cu_seqlens[sequence] - cu_seqlens[max(0, sequence - 1)]",
        "touches memory",
    ),
    "rows written past the last sequence": (
        "if (row >= length) continue;\n        const float sum", "const float sum",
        "touches memory",
    ),
    "rows read past the last sequence": ("first + row < end && dim", "dim", "touches memory"),
    "values laid out behind the shared memory": (
        "keys + KEY_ROWS * KEY_STRIDE", "keys + (KEY_ROWS + 64) * KEY_STRIDE", "touches memory",
    ),
    "a barrier that some warps skip": (
        "__syncthreads();  // every warp is done with the tile",
        "if (warp != 1) __syncthreads();",
        "waits at a barrier that others never reach",
    ),
    "a warp operation that some lanes skip": (
        "__syncwarp();  // the row's weights are complete",
        "if (lane != 5) __syncwarp();",
        "is in another operation than its warp",
    ),
}  # fmt: skip


def mutant(rng, before, after):
    """The narrowest kernel with one place changed, and a case with grouped heads for it."""
    only = ("varlen_attention_32",)
    edit = Edit("varlen_attention", before, after, until="VARLEN_ATTENTION(64", only=only)
    heads = PLAIN | {"num_heads": 4}
    return edit, heads, case(rng, np.float32, heads)


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_a_planted_mistake_shows_in_some_order(rng, name):
    before, after, options = WRONG_ANSWERS[name]
    edit, heads, qkv = mutant(rng, before, after)
    want = attend(qkv, LENGTHS, **heads, **options)

    def error(order):
        got = run_attention(PlainDriver(order, edit), qkv, LENGTHS, **heads, **options)
        return oracle.max_difference(got, want)

    assert shows(error, 100 * budget_of(qkv, want, heads))


@pytest.mark.parametrize("name", ENDED)
def test_a_planted_fault_ends_the_launch_with_a_message(rng, name):
    before, after, message = ENDED[name]
    edit, heads, qkv = mutant(rng, before, after)
    ends(
        lambda order: run_attention(PlainDriver(order, edit), qkv, LENGTHS, **heads),
        "varlen_attention_32",
        message,
    )


def test_a_launch_after_a_fault_is_sound(rng):
    edit, heads, qkv = mutant(rng, *ENDED["cu_seqlens read past its end"][:2])
    with pytest.raises(FiberError, match="touches memory"):
        run_attention(PlainDriver("warp_greedy", edit), qkv, LENGTHS, **heads)
    check(rng, np.dtype(np.float32), "warp_greedy", PLAIN)
