"""Row-wise operations over float32 blocks that stay in cache: layer norm and masked softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers.types import MASKED_AT_OR_BELOW

F32 = NDArray[np.float32]

BLOCK_ELEMENTS = 65536  # 256 KiB of float32: a block and its temporaries fit the L2 cache


def row_blocks(rows: int, cols: int) -> Iterator[slice]:
    """Slices that cut `rows` into blocks of about BLOCK_ELEMENTS values."""
    step = max(1, BLOCK_ELEMENTS // max(1, cols))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def norm(
    x: NDArray[Any],
    weight: F32,
    bias: F32 | None,
    eps: float,
    out: NDArray[Any],
    *,
    residual: NDArray[Any] | None,
    centred: bool,
) -> None:
    """Layer norm, or RMS norm where not `centred`, of y = x + residual, all (rows, cols).

    out = (y - mean) / sqrt(mean square + eps) * weight + bias, the mean 0 for an RMS norm. A layer
    norm's row is centred twice, then squared: nothing cancels, whatever the mean, and a row of
    equal values gives exactly the bias. `out` may be any input.
    """
    for block in row_blocks(*x.shape):
        y = x[block].astype(np.float32)  # a copy
        if residual is not None:
            y += residual[block]
        if centred:
            y -= y.mean(axis=1, keepdims=True)
            y -= y.mean(axis=1, keepdims=True)  # what the first mean's rounding left
        square = np.einsum("ij,ij->i", y, y)[:, None] / np.float32(y.shape[1])
        y *= 1 / np.sqrt(square + np.float32(eps))
        y *= weight
        if bias is not None:
            y += bias
        out[block] = y


def masked_softmax(
    scores: NDArray[Any],
    mask: F32,
    num_heads: int,
    scale: float,
    out: NDArray[Any],
    *,
    beyond: NDArray[np.bool_] | None = None,
    position_bias: F32 | None = None,
) -> None:
    """out = softmax(scores * scale + mask + bias) over the last axis; `out` may be `scores`.

    scores: (B * N, S, S); mask: (B, S) over keys. beyond: (S, S), True for a key outside the
    query's window; position_bias: (N, S, S). A masked key has weight exactly 0; a row whose keys
    are all masked gives zeros.
    """
    masked = mask <= MASKED_AT_OR_BELOW  # (B, S)
    additive = np.where(masked, np.float32(0), mask)  # (B, S)
    step = max(1, BLOCK_ELEMENTS // max(1, scores.shape[1] * scores.shape[2]))
    for start in range(0, len(scores), step):
        group = slice(start, min(len(scores), start + step))
        sequence, head = np.divmod(np.arange(group.start, group.stop), num_heads)  # (g,)
        y = scores[group].astype(np.float32, copy=out is not scores)
        y *= np.float32(scale)
        if position_bias is not None:
            y += position_bias[head]
        if additive[sequence].any():
            y += additive[sequence][:, None, :]
        if masked[sequence].any():
            np.copyto(y, np.float32(-np.inf), where=masked[sequence][:, None, :])
        if beyond is not None:
            np.copyto(y, np.float32(-np.inf), where=beyond)
        softmax_in_place(y)
        out[group] = y


def softmax_in_place(y: F32) -> None:
    """y = softmax(y) over the last axis; -inf has weight 0, and a row of nothing else is zero."""
    peak = y.max(axis=-1, keepdims=True)
    peak[np.isneginf(peak)] = 0
    y -= peak
    np.exp(y, out=y)
    total = y.sum(axis=-1, keepdims=True)
    total[total == 0] = 1
    y /= total


def causal_softmax(scores: NDArray[Any], scale: float, out: NDArray[Any]) -> None:
    """out[g, i] = softmax(scores[g, i, : i + 1] * scale), zeros after it; `out` may be `scores`.

    scores: (G, S, S). What stands above the diagonal leaves no trace.
    """
    later = np.triu(np.ones(scores.shape[1:], np.bool_), k=1)  # (S, S)
    step = max(1, BLOCK_ELEMENTS // max(1, later.size))
    for start in range(0, len(scores) if later.size else 0, step):
        group = slice(start, min(len(scores), start + step))
        y = scores[group].astype(np.float32)  # (g, S, S), a copy
        with np.errstate(over="ignore", invalid="ignore"):  # later scores, or two far apart
            y *= np.float32(scale)
            np.copyto(y, np.float32(-np.inf), where=later)
            softmax_in_place(y)
        out[group] = y
