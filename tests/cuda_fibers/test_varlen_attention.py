"""What the kernel does beyond plain attention, and the mistakes that the fibers must show."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests import oracle
from tests.cuda_fibers.device import Edit, FiberDevice
from tests.cuda_fibers.driver import run_attention
from tests.cuda_fibers.engine import ORDERS, FiberError

LENGTHS = (33, 1, 70, 17)
PLAIN = {"num_heads": 2, "kv_heads": 2, "head_dim": 32, "scale": 32**-0.5}


def case(rng, dtype, heads, lengths=LENGTHS):
    """qkv (T, (N + 2 KV) * D) and cu_seqlens (B + 1,)."""
    width = (heads["num_heads"] + 2 * heads["kv_heads"]) * heads["head_dim"]
    qkv = rng.standard_normal((sum(lengths), width)).astype(dtype)
    return qkv, np.cumsum([0, *lengths]).astype(np.int32)


def attend(
    qkv, cu_seqlens, *, num_heads, kv_heads, head_dim, scale, window_left=None, window_right=None,
    position_bias=None,
):  # fmt: skip
    """The formula, one sequence and head at a time, in float64."""
    q, k, v = np.split(oracle.wide(qkv), np.cumsum([num_heads, kv_heads]) * head_dim, axis=1)
    out = np.zeros(q.shape)
    for start, end in pairwise(cu_seqlens):
        position = np.arange(end - start)
        offset = position - position[:, None]  # (S, S), key - query
        seen = (offset >= (-np.inf if window_left is None else -window_left)) & (
            offset <= (np.inf if window_right is None else window_right)
        )
        for head in range(num_heads):
            shared = head * kv_heads // num_heads
            own, other = (slice(n * head_dim, (n + 1) * head_dim) for n in (head, shared))
            logits = q[start:end, own] @ k[start:end, other].T * scale
            if position_bias is not None:
                logits = logits + position_bias[head][offset + position_bias.shape[1] // 2]
            logits = np.where(seen, logits, -np.inf)
            powers = np.exp(logits - logits.max(axis=1, keepdims=True))
            out[start:end, own] = powers / powers.sum(axis=1, keepdims=True) @ v[start:end, other]
    return out


def budget_of(qkv, want, heads):
    """A float32 logit errs by e, so a weight by its own share times exp(2 e) - 1."""
    dim = heads["head_dim"]
    largest = float(np.abs(oracle.wide(qkv)).max())
    norm = np.sqrt((oracle.wide(qkv).reshape(-1, dim) ** 2).sum(axis=1)).max()
    logit = heads["scale"] * oracle.FLOAT32_ROUNDING * np.sqrt(dim) * norm**2
    noise = oracle.error_budget(want, qkv.dtype, terms=max(LENGTHS) + 8, scale=largest)
    return noise + largest * float(np.expm1(2 * logit))


def check(rng, dtype, order, heads, **options):
    qkv, cu_seqlens = case(rng, dtype, heads)
    want = attend(qkv, cu_seqlens, **heads, **options)
    got = run_attention(FiberDevice(order), qkv, cu_seqlens, max_seq=70, **heads, **options)
    assert got.dtype == dtype
    assert oracle.max_difference(got, want) <= budget_of(qkv, want, heads)


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 1, 31, 33, 65, 97, 127])
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
    qkv, cu_seqlens = case(rng, dtype, PLAIN)
    answers = [
        run_attention(FiberDevice(order), qkv, cu_seqlens, max_seq=70, **PLAIN) for order in ORDERS
    ]
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


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
    edit = Edit("varlen_attention", before, after, until="VARLEN_ATTENTION(64)", only=only)
    heads = PLAIN | {"num_heads": 4}
    return edit, heads, *case(rng, np.float32, heads)


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_a_planted_mistake_shows_in_some_order(rng, name):
    before, after, options = WRONG_ANSWERS[name]
    edit, heads, qkv, cu_seqlens = mutant(rng, before, after)
    want = attend(qkv, cu_seqlens, **heads, **options)
    errors = [
        oracle.max_difference(
            run_attention(
                FiberDevice(order, edit), qkv, cu_seqlens, max_seq=70, **heads, **options
            ),
            want,
        )
        for order in ORDERS
    ]
    assert not all(error <= 100 * budget_of(qkv, want, heads) for error in errors)


@pytest.mark.parametrize("name", ENDED)
def test_a_planted_fault_ends_the_launch_with_a_message(rng, name):
    before, after, message = ENDED[name]
    edit, heads, qkv, cu_seqlens = mutant(rng, before, after)
    for order in ORDERS:
        with pytest.raises(FiberError, match=f"varlen_attention_32, {order}: .*{message}"):
            run_attention(FiberDevice(order, edit), qkv, cu_seqlens, max_seq=70, **heads)


def test_a_launch_after_a_fault_is_sound(rng):
    edit, heads, qkv, cu_seqlens = mutant(rng, *ENDED["cu_seqlens read past its end"][:2])
    with pytest.raises(FiberError, match="touches memory"):
        run_attention(FiberDevice("warp_greedy", edit), qkv, cu_seqlens, max_seq=70, **heads)
    check(rng, np.dtype(np.float32), "warp_greedy", PLAIN)
