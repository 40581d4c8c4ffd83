"""Banded attention in NumPy: blocks of queries against the few keys their band reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from drivers import dtypes, shapes
from drivers.numpy import rows
from drivers.numpy.base import Array, NumpyOps, float32

QUERIES = 64  # a block's scores reach QUERIES + W - 1 keys, of which each query needs W


class Block(NamedTuple):
    """Queries of a block, the keys that exist among those its bands span, and their columns."""

    queries: slice
    keys: slice
    columns: slice


class NumpyBanded(NumpyOps):
    """`drivers.primitives.attention.Banded` in NumPy."""

    def banded_qk(self, q: Array, k: Array, *, window: int, out: Array | None = None) -> Array:
        shape = shapes.banded_qk("banded_qk", q.shape, k.shape, window)
        dtypes.require_float("banded_qk", q, k)
        out = self._out("banded_qk", out, shape, q.dtype)
        groups, seq, head_dim = q.shape
        shared = groups // max(1, len(k))  # r, the query heads of a key head
        by_key_head = float32(q).reshape(len(k), shared, seq, head_dim)  # (G / r, r, S, D)
        keys = float32(k)[:, None].swapaxes(-1, -2)  # (G / r, 1, D, S)
        for block in _blocks(seq, window):
            count = block.queries.stop - block.queries.start
            dense = np.full((groups, count, count + window - 1), -np.inf, np.float32)
            by_group = dense.reshape(len(k), shared, *dense.shape[1:])
            by_group[..., block.columns] = by_key_head[:, :, block.queries] @ keys[..., block.keys]
            out[:, block.queries] = _diagonals(dense, window)
        return out

    def banded_softmax(
        self,
        scores: Array,
        *,
        scale: float,
        seq_lengths: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Array:
        op = "banded_softmax"
        shapes.banded_softmax(op, scores.shape, seq_lengths)
        dtypes.require_float(op, scores)
        out = self._out(op, out, scores.shape, scores.dtype)
        if not out.size:
            return out
        y = scores.astype(np.float32)
        masked = np.isneginf(y)
        if seq_lengths is not None:
            groups, seq, window = scores.shape
            key = np.arange(seq)[:, None] - window // 2 + np.arange(window)  # (S, W)
            behind = key >= np.asarray(seq_lengths)[:, None, None]  # (B, S, W)
            by_sequence = masked.reshape(len(seq_lengths), groups // len(seq_lengths), seq, window)
            by_sequence |= behind[:, None]
        y[masked] = 0
        y *= np.float32(scale)
        y[masked] = -np.inf
        rows.softmax_in_place(y)
        out[...] = y
        return out

    def banded_sv(self, weights: Array, v: Array, *, out: Array | None = None) -> Array:
        shape = shapes.banded_sv("banded_sv", weights.shape, v.shape)
        dtypes.require_float("banded_sv", weights, v)
        out = self._out("banded_sv", out, shape, v.dtype)
        groups, seq, window = weights.shape
        values = float32(v)[:, None]  # (G / r, 1, S, D)
        shared = groups // max(1, len(v))  # r, the query heads of a value head
        by_value_head = out.reshape(len(v), shared, *out.shape[1:])
        for block in _blocks(seq, window):
            count = block.queries.stop - block.queries.start
            dense = np.zeros((groups, count, count + window - 1), np.float32)
            _diagonals(dense, window)[...] = weights[:, block.queries]
            by_group = dense.reshape(len(v), shared, *dense.shape[1:])
            by_value_head[:, :, block.queries] = (
                by_group[..., block.columns] @ values[:, :, block.keys]
            )
        return out


def _blocks(seq: int, window: int) -> Iterator[Block]:
    """Blocks of queries. Column c of a block stands for the key at its first band's start + c."""
    for start in range(0, seq, QUERIES):
        stop = min(seq, start + QUERIES)
        first = start - window // 2
        span = stop - start + window - 1
        keys = slice(max(0, first), min(seq, first + span))
        yield Block(slice(start, stop), keys, slice(keys.start - first, keys.stop - first))


def _diagonals(dense: Array, window: int) -> Array:
    """A view (G, b, W) of (G, b, b + W - 1): row r of each group from its column r on."""
    groups, count, _ = dense.shape
    by_group, by_row, by_column = dense.strides
    strides = (by_group, by_row + by_column, by_column)
    return as_strided(dense, shape=(groups, count, window), strides=strides)
