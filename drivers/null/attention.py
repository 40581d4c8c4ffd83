"""Padding, attention, rotation and pooling on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from drivers import shapes
from drivers.dtypes import FLOAT32
from drivers.null.tensor import NullOps, NullTensor, Tally


class NullAttention(NullOps):
    """`drivers.primitives.attention`, and padding, on shapes alone."""

    # ---- padding

    def pad_to_batch(
        self,
        flat: NullTensor,
        *,
        seq_lengths: Sequence[int],
        max_seq: int,
        out: NullTensor | None = None,
    ) -> NullTensor:
        shapes.tokens("pad_to_batch", flat.shape, seq_lengths, max_seq)
        shape = (len(seq_lengths), max_seq, flat.shape[1])
        return self._new("pad_to_batch", out, shape, flat.dtype)

    def unpad_from_batch(
        self, padded: NullTensor, *, seq_lengths: Sequence[int], out: NullTensor | None = None
    ) -> NullTensor:
        shapes.require("unpad_from_batch", "padded", padded.shape, (len(seq_lengths), None, None))
        shape = (sum(seq_lengths), padded.shape[2])
        shapes.tokens("unpad_from_batch", shape, seq_lengths, padded.shape[1])
        return self._new("unpad_from_batch", out, shape, padded.dtype)

    # ---- heads

    def qkv_split(
        self,
        qkv: NullTensor,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        out: tuple[NullTensor, NullTensor, NullTensor] | None = None,
    ) -> tuple[NullTensor, NullTensor, NullTensor]:
        op = "qkv_split"
        shapes.require(op, "qkv", qkv.shape, (None, None, None))
        kv_heads, head_dim = shapes.qkv(op, qkv.shape, num_heads, kv_heads, head_dim)
        wanted = shapes.qkv_heads(qkv.shape[0], qkv.shape[1], num_heads, kv_heads, head_dim)
        q, k, v = self._several(op, out, wanted, qkv.dtype)
        return q, k, v

    def fused_pad_qkv_split(
        self,
        flat: NullTensor,
        *,
        seq_lengths: Sequence[int],
        max_seq: int,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        out: tuple[NullTensor, NullTensor, NullTensor] | None = None,
    ) -> tuple[NullTensor, NullTensor, NullTensor]:
        op = "fused_pad_qkv_split"
        shapes.tokens(op, flat.shape, seq_lengths, max_seq)
        kv_heads, head_dim = shapes.qkv(op, flat.shape, num_heads, kv_heads, head_dim)
        wanted = shapes.qkv_heads(len(seq_lengths), max_seq, num_heads, kv_heads, head_dim)
        q, k, v = self._several(op, out, wanted, flat.dtype)
        return q, k, v

    def attn_reshape(
        self, heads: NullTensor, *, num_heads: int, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.require("attn_reshape", "heads", heads.shape, (None, None, None))
        groups, seq, head_dim = heads.shape
        batch = shapes.heads("attn_reshape", groups, num_heads)
        return self._new("attn_reshape", out, (batch, seq, num_heads * head_dim), heads.dtype)

    def split_heads(
        self, x: NullTensor, *, num_heads: int, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.require("split_heads", "x", x.shape, (None, None, None))
        batch, seq, hidden = x.shape
        head_dim = shapes.heads("split_heads", hidden, num_heads)
        return self._new("split_heads", out, (batch * num_heads, seq, head_dim), x.dtype)

    def matrix_at(self, x: NullTensor, index: int) -> NullTensor:
        shape = shapes.matrix_at("matrix_at", x.shape, index)
        self.tally.calls_total["matrix_at"] += 1
        return NullTensor(shape, x.dtype, Tally())  # a view holds no bytes of its own

    def causal_softmax(
        self, scores: NullTensor, *, scale: float, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.squares("causal_softmax", "scores", scores.shape)
        return self._new("causal_softmax", out, scores.shape, scores.dtype)

    def fused_reshape_unpad(
        self,
        heads: NullTensor,
        *,
        seq_lengths: Sequence[int],
        num_heads: int,
        out: NullTensor | None = None,
    ) -> NullTensor:
        op = "fused_reshape_unpad"
        shape = shapes.reshape_unpad(op, heads.shape, seq_lengths, num_heads)
        return self._new(op, out, shape, heads.dtype)

    # ---- masks and softmax

    def build_attn_mask(self, int_mask: NullTensor, *, out: NullTensor | None = None) -> NullTensor:
        shapes.require("build_attn_mask", "int_mask", int_mask.shape, (None, None))
        return self._new("build_attn_mask", out, int_mask.shape, FLOAT32)

    def fused_scale_mask_softmax(
        self,
        scores: NullTensor,
        mask: NullTensor,
        *,
        num_heads: int,
        scale: float,
        window_left: int | None = None,
        window_right: int | None = None,
        position_bias: NullTensor | None = None,
        out: NullTensor | None = None,
    ) -> NullTensor:
        op = "fused_scale_mask_softmax"
        bias_shape = None if position_bias is None else position_bias.shape
        window = (window_left, window_right)
        shapes.softmax(op, scores.shape, mask.shape, num_heads, window, bias_shape)
        return self._new(op, out, scores.shape, scores.dtype)

    def fused_scale_mask_softmax_windowed(
        self,
        scores: NullTensor,
        mask: NullTensor,
        *,
        num_heads: int,
        scale: float,
        window: int,
        out: NullTensor | None = None,
    ) -> NullTensor:
        op = "fused_scale_mask_softmax_windowed"
        shapes.softmax(op, scores.shape, mask.shape, num_heads, (window // 2, window // 2))
        return self._new(op, out, scores.shape, scores.dtype)

    # ---- the band

    def banded_qk(
        self, q: NullTensor, k: NullTensor, *, window: int, out: NullTensor | None = None
    ) -> NullTensor:
        shape = shapes.banded_qk("banded_qk", q.shape, k.shape, window)
        self.tally.flops_total += 2 * prod(shape) * q.shape[2]
        return self._new("banded_qk", out, shape, q.dtype)

    def banded_softmax(
        self,
        scores: NullTensor,
        *,
        scale: float,
        seq_lengths: Sequence[int] | None = None,
        out: NullTensor | None = None,
    ) -> NullTensor:
        shapes.banded_softmax("banded_softmax", scores.shape, seq_lengths)
        return self._new("banded_softmax", out, scores.shape, scores.dtype)

    def banded_sv(
        self, weights: NullTensor, v: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shape = shapes.banded_sv("banded_sv", weights.shape, v.shape)
        self.tally.flops_total += 2 * prod(shape) * weights.shape[2]
        return self._new("banded_sv", out, shape, v.dtype)

    # ---- rotation

    def apply_rope(
        self, x: NullTensor, cos: NullTensor, sin: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.rope("apply_rope", x.shape, cos.shape, sin.shape)
        return self._new("apply_rope", out, x.shape, x.dtype)

    # ---- pooling

    def cls_pool(self, hidden: NullTensor, *, out: NullTensor | None = None) -> NullTensor:
        return self._new("cls_pool", out, shapes.cls_pool("cls_pool", hidden.shape), FLOAT32)

    def mean_pool(
        self, hidden: NullTensor, mask: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shape = shapes.pooled("mean_pool", hidden.shape, mask.shape)
        return self._new("mean_pool", out, shape, FLOAT32)

    def max_pool(
        self, hidden: NullTensor, mask: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shape = shapes.pooled("max_pool", hidden.shape, mask.shape)
        return self._new("max_pool", out, shape, FLOAT32)
