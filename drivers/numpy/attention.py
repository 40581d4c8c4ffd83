"""The steps of padded attention in NumPy: pad, split, masked softmax, rotate, join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from drivers import dtypes, shapes
from drivers.numpy import rows
from drivers.numpy.base import Array, NumpyOps, float32
from drivers.types import MASK_VALUE


class NumpyAttention(NumpyOps):
    """`drivers.primitives.attention`, the dense steps and the rotation, and padding, in NumPy."""

    # ---- padding

    def pad_to_batch(
        self, flat: Array, *, seq_lengths: Sequence[int], max_seq: int, out: Array | None = None
    ) -> Array:
        shapes.tokens("pad_to_batch", flat.shape, seq_lengths, max_seq)
        shape = (len(seq_lengths), max_seq, flat.shape[1])
        out = self._out("pad_to_batch", out, shape, flat.dtype)
        for row, tokens in enumerate(_sequences(seq_lengths)):
            length = tokens.stop - tokens.start
            out[row, :length] = flat[tokens]
            out[row, length:] = 0
        return out

    def unpad_from_batch(
        self, padded: Array, *, seq_lengths: Sequence[int], out: Array | None = None
    ) -> Array:
        shapes.require("unpad_from_batch", "padded", padded.shape, (len(seq_lengths), None, None))
        shape = (sum(seq_lengths), padded.shape[2])
        shapes.tokens("unpad_from_batch", shape, seq_lengths, padded.shape[1])
        out = self._out("unpad_from_batch", out, shape, padded.dtype)
        for row, tokens in enumerate(_sequences(seq_lengths)):
            out[tokens] = padded[row, : tokens.stop - tokens.start]
        return out

    # ---- heads

    def qkv_split(
        self,
        qkv: Array,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        out: tuple[Array, Array, Array] | None = None,
    ) -> tuple[Array, Array, Array]:
        op = "qkv_split"
        shapes.require(op, "qkv", qkv.shape, (None, None, None))
        kv_heads, head_dim = shapes.qkv(op, qkv.shape, num_heads, kv_heads, head_dim)
        dtypes.require_float(op, qkv)
        batch, seq, _ = qkv.shape
        wanted = shapes.qkv_heads(batch, seq, num_heads, kv_heads, head_dim)
        q, k, v = self._outs(op, out, wanted, qkv.dtype)
        first = 0
        for part, heads in ((q, num_heads), (k, kv_heads), (v, kv_heads)):
            width = heads * head_dim
            columns = qkv[:, :, first : first + width].reshape(batch, seq, heads, head_dim)
            by_head = part.reshape(batch, heads, seq, head_dim)
            by_head[...] = columns.transpose(0, 2, 1, 3)
            first += width
        return q, k, v

    def fused_pad_qkv_split(
        self,
        flat: Array,
        *,
        seq_lengths: Sequence[int],
        max_seq: int,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        out: tuple[Array, Array, Array] | None = None,
    ) -> tuple[Array, Array, Array]:
        op = "fused_pad_qkv_split"
        shapes.tokens(op, flat.shape, seq_lengths, max_seq)
        kv_heads, head_dim = shapes.qkv(op, flat.shape, num_heads, kv_heads, head_dim)
        dtypes.require_float(op, flat)
        batch = len(seq_lengths)
        wanted = shapes.qkv_heads(batch, max_seq, num_heads, kv_heads, head_dim)
        q, k, v = self._outs(op, out, wanted, flat.dtype)
        first = 0
        for part, heads in ((q, num_heads), (k, kv_heads), (v, kv_heads)):
            width = heads * head_dim
            columns = flat[:, first : first + width].reshape(len(flat), heads, head_dim)
            by_head = part.reshape(batch, heads, max_seq, head_dim)
            for row, tokens in enumerate(_sequences(seq_lengths)):
                length = tokens.stop - tokens.start
                by_head[row, :, :length] = columns[tokens].transpose(1, 0, 2)
                by_head[row, :, length:] = 0
            first += width
        return q, k, v

    def attn_reshape(self, heads: Array, *, num_heads: int, out: Array | None = None) -> Array:
        shapes.require("attn_reshape", "heads", heads.shape, (None, None, None))
        groups, seq, head_dim = heads.shape
        batch = shapes.heads("attn_reshape", groups, num_heads)
        out = self._out("attn_reshape", out, (batch, seq, num_heads * head_dim), heads.dtype)
        by_token = out.reshape(batch, seq, num_heads, head_dim)
        by_token[...] = heads.reshape(batch, num_heads, seq, head_dim).transpose(0, 2, 1, 3)
        return out

    def split_heads(self, x: Array, *, num_heads: int, out: Array | None = None) -> Array:
        shapes.require("split_heads", "x", x.shape, (None, None, None))
        batch, seq, hidden = x.shape
        head_dim = shapes.heads("split_heads", hidden, num_heads)
        out = self._out("split_heads", out, (batch * num_heads, seq, head_dim), x.dtype)
        by_head = out.reshape(batch, num_heads, seq, head_dim)
        by_head[...] = x.reshape(batch, seq, num_heads, head_dim).transpose(0, 2, 1, 3)
        return out

    def matrix_at(self, x: Array, index: int) -> Array:
        shapes.matrix_at("matrix_at", x.shape, index)
        matrix: Array = x[index]
        return matrix

    def fused_reshape_unpad(
        self,
        heads: Array,
        *,
        seq_lengths: Sequence[int],
        num_heads: int,
        out: Array | None = None,
    ) -> Array:
        op = "fused_reshape_unpad"
        shape = shapes.reshape_unpad(op, heads.shape, seq_lengths, num_heads)
        dtypes.require_float(op, heads)
        _, seq, head_dim = heads.shape
        out = self._out(op, out, shape, heads.dtype)
        by_token = out.reshape(len(out), num_heads, head_dim)
        by_head = heads.reshape(len(seq_lengths), num_heads, seq, head_dim)
        for row, tokens in enumerate(_sequences(seq_lengths)):
            length = tokens.stop - tokens.start
            by_token[tokens] = by_head[row, :, :length].transpose(1, 0, 2)
        return out

    # ---- masks and softmax

    def build_attn_mask(self, int_mask: Array, *, out: Array | None = None) -> Array:
        shapes.require("build_attn_mask", "int_mask", int_mask.shape, (None, None))
        dtypes.require("build_attn_mask", "int_mask", int_mask, dtypes.INT32)
        shape, only = int_mask.shape, dtypes.FLOAT32
        out = self._out("build_attn_mask", out, shape, only, only=only)
        out[...] = np.where(int_mask != 0, np.float32(0), np.float32(MASK_VALUE))
        return out

    def fused_scale_mask_softmax(
        self,
        scores: Array,
        mask: Array,
        *,
        num_heads: int,
        scale: float,
        window_left: int | None = None,
        window_right: int | None = None,
        position_bias: Array | None = None,
        out: Array | None = None,
    ) -> Array:
        op = "fused_scale_mask_softmax"
        window = (window_left, window_right)
        return self._softmax(op, scores, mask, num_heads, scale, window, position_bias, out)

    def fused_scale_mask_softmax_windowed(
        self,
        scores: Array,
        mask: Array,
        *,
        num_heads: int,
        scale: float,
        window: int,
        out: Array | None = None,
    ) -> Array:
        op = "fused_scale_mask_softmax_windowed"
        reach = (window // 2, window // 2)
        return self._softmax(op, scores, mask, num_heads, scale, reach, None, out)

    def causal_softmax(self, scores: Array, *, scale: float, out: Array | None = None) -> Array:
        shapes.squares("causal_softmax", "scores", scores.shape)
        dtypes.require_float("causal_softmax", scores)
        out = self._out("causal_softmax", out, scores.shape, scores.dtype)
        groups = (1, *scores.shape)[-3:]  # (G, S, S)
        rows.causal_softmax(scores.reshape(groups), scale, out.reshape(groups))
        return out

    def _softmax(
        self,
        op: str,
        scores: Array,
        mask: Array,
        num_heads: int,
        scale: float,
        window: tuple[int | None, int | None],
        position_bias: Array | None,
        out: Array | None,
    ) -> Array:
        bias_shape = None if position_bias is None else position_bias.shape
        shapes.softmax(op, scores.shape, mask.shape, num_heads, window, bias_shape)
        dtypes.require_float(op, scores)
        dtypes.require(op, "mask", mask, dtypes.FLOAT32)
        dtypes.require(op, "position_bias", position_bias, dtypes.FLOAT32)
        out = self._out(op, out, scores.shape, scores.dtype)
        if out.size:
            seq = scores.shape[1]
            every = slice(0, seq)
            rows.masked_softmax(
                scores,
                mask,
                num_heads,
                scale,
                out,
                beyond=beyond(every, every, *window),
                position_bias=None if position_bias is None else by_pair(position_bias, seq),
            )
        return out

    # ---- rotation

    def apply_rope(self, x: Array, cos: Array, sin: Array, *, out: Array | None = None) -> Array:
        op = "apply_rope"
        shapes.rope(op, x.shape, cos.shape, sin.shape)
        dtypes.require_float(op, x)
        dtypes.require(op, "cos", cos, dtypes.FLOAT32)
        dtypes.require(op, "sin", sin, dtypes.FLOAT32)
        out = self._out(op, out, x.shape, x.dtype)
        groups, seq, head_dim = x.shape
        tables = 1 if cos.ndim == 2 else len(cos)
        pairs = cos.shape[-1]
        c, s = (t.reshape(tables, 1, -1, pairs)[:, :, :seq] for t in (cos, sin))  # (B, 1, S, R/2)
        heads = x.reshape(tables, groups // max(1, tables), seq, head_dim)
        rotated = out.reshape(heads.shape)
        first = float32(heads[..., :pairs])
        second = float32(heads[..., pairs : 2 * pairs])
        turned = first * c - second * s
        rotated[..., pairs : 2 * pairs] = second * c + first * s
        rotated[..., :pairs] = turned
        if out is not x:
            rotated[..., 2 * pairs :] = heads[..., 2 * pairs :]
        return out


def _sequences(seq_lengths: Sequence[int]) -> Iterator[slice]:
    """Where each sequence lies among the flat tokens."""
    start = 0
    for length in seq_lengths:
        yield slice(start, start + length)
        start += length


def beyond(
    queries: slice, keys: slice, left: int | None, right: int | None
) -> NDArray[np.bool_] | None:
    """(queries, keys): True where a key lies outside the query's window; None without one."""
    shape = (queries.stop - queries.start, keys.stop - keys.start)
    ahead = queries.start - keys.start  # the first query's own column
    before = None if left is None else np.tri(*shape, ahead - left - 1, dtype=np.bool_)
    after = None if right is None else ~np.tri(*shape, ahead + right, dtype=np.bool_)
    if before is None or after is None:
        return after if before is None else before
    return before | after


def by_pair(position_bias: Array, seq: int) -> Array:
    """(N, 2 P - 1) by distance -> a view (N, S, S) by query and key."""
    middle = position_bias.shape[1] // 2
    by_head, step = position_bias.strides
    return as_strided(
        position_bias[:, middle:],
        shape=(len(position_bias), seq, seq),
        strides=(by_head, -step, step),
        writeable=False,
    )
