"""Attention over long sequences in NumPy: in parts, so that the scores stay small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from drivers.numpy import rows
from drivers.numpy.attention import beyond, by_pair
from drivers.numpy.base import Array, NumpyOps, float32
from drivers.types import BatchInputs

Window = tuple[int | None, int | None]


class NumpyLongAttention(NumpyOps):
    """Attention that holds at most `max_score_bytes` of scores at a time.

    16 MiB is also the faster way for long rows, whose scores would pass through memory many times:
    8,192 tokens of 12 heads take 9 s in parts and 36 s at once (3.2 GB), on one core.
    """

    max_score_bytes = 1 << 24

    def _attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        batch: BatchInputs[Array],
        *,
        scale: float,
        window: Window,
        position_bias: Array | None,
    ) -> Array:
        at_once = self.max_score_bytes // (4 * batch.max_seq**2 * (len(q) // batch.batch))
        if at_once >= batch.batch:
            return super()._attend(
                q, k, v, batch, scale=scale, window=window, position_bias=position_bias
            )
        if not at_once:
            return self._attend_by_head(q, k, v, batch, scale, window, position_bias)
        heads = self.pool_memory.new(q.shape, v.dtype)  # (B * N, S, D)
        for first in range(0, batch.batch, at_once):
            some = slice(first, first + at_once)
            part = replace(
                batch, attn_mask=batch.attn_mask[some], seq_lengths=batch.seq_lengths[some]
            )
            heads[_of(some, len(q), batch)] = super()._attend(
                q[_of(some, len(q), batch)],
                k[_of(some, len(k), batch)],
                v[_of(some, len(v), batch)],
                part,
                scale=scale,
                window=window,
                position_bias=position_bias,
            )
        return heads

    def _attend_by_head(
        self,
        q: Array,
        k: Array,
        v: Array,
        batch: BatchInputs[Array],
        scale: float,
        window: Window,
        position_bias: Array | None,
    ) -> Array:
        """Each sequence and key head alone, a block of queries at a time."""
        heads = self.pool_memory.zeros(q.shape, v.dtype)  # (B * N, S, D)
        shared = len(q) // len(k)  # r, the query heads of a key head
        bias = None if position_bias is None else by_pair(position_bias, batch.max_seq)
        for key_head in range(len(k)):
            row, first = divmod(key_head * shared, len(q) // batch.batch)
            group = slice(key_head * shared, (key_head + 1) * shared)  # of all B * N heads
            own = slice(first, first + shared)  # of a sequence's N heads
            length = batch.seq_lengths[row]
            step = max(1, self.max_score_bytes // (4 * shared * length))
            for queries, keys in _blocks(length, step, window):
                scores = float32(q[group, queries]) @ float32(k[key_head, keys]).T  # (r, b, K)
                rows.masked_softmax(
                    scores,
                    batch.attn_mask[row : row + 1, keys],
                    shared,
                    scale,
                    scores,
                    beyond=beyond(queries, keys, *window),
                    position_bias=None if bias is None else bias[own, queries, keys],
                )
                heads[group, queries] = scores @ float32(v[key_head, keys])  # (r, b, D)
        return heads


def _of(sequences: slice, groups: int, batch: BatchInputs[Array]) -> slice:
    """The groups of some sequences: heads are stored sequence by sequence."""
    each = groups // batch.batch
    return slice(sequences.start * each, sequences.stop * each)


def _blocks(length: int, step: int, window: Window) -> Iterator[tuple[slice, slice]]:
    """Blocks of `step` queries, each with the keys that at least one of them may see."""
    left, right = window
    for start in range(0, length, step):
        stop = min(length, start + step)
        first = 0 if left is None else max(0, start - left)
        last = length if right is None else min(length, stop + right)
        yield slice(start, stop), slice(first, last)
