"""The forward operations composed from the primitives, so that a new driver starts complete.

A driver that can do better overrides a method; the composition remains what it is tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from drivers import shapes
from drivers.dtypes import FLOAT32
from drivers.errors import DriverError, DtypeError, ShapeError
from drivers.protocol import Driver
from drivers.types import (
    Activation,
    BatchInputs,
    EmbeddingTable,
    NormKind,
    NormOrder,
    NormWeights,
    PoolMode,
    QkNorm,
    Rope,
    T,
    WeightRole,
)

UNIT_EPS = np.float32(1e-12)  # torch.nn.functional.normalize


class ForwardOps(Driver[T]):
    """Base of drivers: the forward operations of `drivers.protocol.Forward` from primitives."""

    def pack(self, weight: NDArray[Any], role: WeightRole, dtype: DTypeLike) -> T:
        if np.dtype(dtype) not in self.dtypes:
            have = ", ".join(str(d) for d in self.dtypes)
            raise DtypeError(f"{self.name}: no storage type {np.dtype(dtype)}, only {have}")
        if weight.ndim != (1 if role == "vector" else 2):
            raise ShapeError(f"pack: a weight of role '{role}' has shape {weight.shape}")
        return self.from_host(np.ascontiguousarray(weight, dtype=dtype))

    def packed_layout(self, dtype: DTypeLike) -> str | None:
        return None

    def packed_values(self, packed: T) -> NDArray[Any]:
        raise DriverError(f"{self.name}: packed weights have no layout of their own")

    def from_packed(
        self, values: NDArray[Any], shape: tuple[int, ...], role: WeightRole, dtype: DTypeLike
    ) -> T:
        raise DriverError(f"{self.name}: packed weights have no layout of their own")

    def embed(
        self,
        batch: BatchInputs[T],
        tables: Sequence[EmbeddingTable[T]],
        norm: NormWeights[T] | None = None,
    ) -> T:
        if not tables:
            raise ShapeError("embed: no tables")
        if norm is not None:
            require_norm("embed", norm)
        first, *rest = tables
        x = self.embedding_lookup(getattr(batch, first.ids), first.table)  # (T, E)
        for entry in rest:
            x = self.add_embeddings(x, entry.table, getattr(batch, entry.ids), out=x)  # (T, E)
        return x if norm is None else self._norm_rows(x, norm, out=x)  # (T, E)

    def linear(
        self,
        x: T,
        weight: T,
        bias: T | None = None,
        *,
        act: Activation | None = None,
        residual: T | None = None,
    ) -> T:
        y = self.gemm(x, weight, transpose_b=True)  # (T, out)
        if act == "gelu" and bias is not None:
            y = self.fused_bias_gelu(y, bias, out=y)
        elif act is None and bias is not None and residual is not None:
            return self.fused_bias_residual(y, bias, residual, out=y)
        else:
            y = y if bias is None else self.add_bias(y, bias, out=y)
            y = y if act is None else self.activate(y, act, out=y)
        return y if residual is None else self.residual_add(y, residual, out=y)

    def gated_linear(self, x: T, weight: T, bias: T | None = None, *, act: Activation) -> T:
        return self.fused_split_gate(self.linear(x, weight, bias), act)  # (T, F)

    def add_norm(
        self, x: T, residual: T | None, norm: NormWeights[T], *, order: NormOrder = "pre"
    ) -> T:
        require_order("add_norm", order)
        require_norm("add_norm", norm)
        if residual is None:
            return self._norm_rows(x, norm)
        if order == "sandwich":  # the norm stays in float32 until the residual is added
            wide = self._norm_rows(x, norm, out=self.alloc_zeros(x.shape, FLOAT32))
            return self.residual_add(wide, residual, out=self.alloc_zeros(x.shape, x.dtype))
        if norm.kind == "layer":
            return self.fused_residual_layernorm(x, residual, norm.weight, norm.bias, eps=norm.eps)
        return self.fused_residual_rmsnorm(x, residual, norm.weight, eps=norm.eps)

    def _norm_rows(self, x: T, norm: NormWeights[T], out: T | None = None) -> T:
        """norm(x), of the kind that `norm` says: (T, E) -> (T, E)."""
        if norm.kind == "layer":
            return self.layer_norm(x, norm.weight, norm.bias, eps=norm.eps, out=out)
        return self.rms_norm(x, norm.weight, eps=norm.eps, out=out)

    def attention(
        self,
        qkv: T,
        batch: BatchInputs[T],
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        rope: Rope[T] | None = None,
        qk_norm: QkNorm[T] | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        causal: bool = False,
        position_bias: T | None = None,
    ) -> T:
        shapes.flat_batch("attention", qkv.shape, batch)
        shapes.reach("attention", window_left, window_right)
        kv_heads, head_dim = shapes.qkv("attention", qkv.shape, num_heads, kv_heads, head_dim)
        scale = head_dim**-0.5 if scale is None else scale
        window_right = 0 if causal else window_right
        lengths, max_seq = batch.seq_lengths, batch.max_seq
        q, k, v = self.fused_pad_qkv_split(
            qkv,
            seq_lengths=lengths,
            max_seq=max_seq,
            num_heads=num_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )  # (B * N, S, D), (B * KV, S, D)
        if qk_norm is not None:
            q = self.rms_norm(q, qk_norm.q_weight, eps=qk_norm.eps, out=q)
            k = self.rms_norm(k, qk_norm.k_weight, eps=qk_norm.eps, out=k)
        if rope is not None:
            q = self.apply_rope(q, rope.cos, rope.sin, out=q)
            k = self.apply_rope(k, rope.cos, rope.sin, out=k)
        # Scores are float32 whatever the storage: unscaled they pass float16's range.
        band = _band(window_left, window_right, position_bias)
        if band is not None and 2 * band <= max_seq:
            scores = self.alloc_zeros((q.shape[0], max_seq, band), FLOAT32)
            scores = self.banded_qk(q, k, window=band, out=scores)  # (B * N, S, W)
            weights = self.banded_softmax(scores, scale=scale, seq_lengths=lengths, out=scores)
            heads = self.banded_sv(weights, v)  # (B * N, S, D)
        else:
            heads = self._attend(
                q,
                k,
                v,
                batch,
                scale=scale,
                window=(window_left, window_right),
                position_bias=position_bias,
            )  # (B * N, S, D)
        return self.fused_reshape_unpad(heads, seq_lengths=lengths, num_heads=num_heads)  # (T, ND)

    def _attend(
        self,
        q: T,
        k: T,
        v: T,
        batch: BatchInputs[T],
        *,
        scale: float,
        window: tuple[int | None, int | None],
        position_bias: T | None,
    ) -> T:
        """Every query against every key: (B * N, S, D), (B * KV, S, D) twice -> (B * N, S, D)."""
        max_seq = batch.max_seq
        scores = self.alloc_zeros((q.shape[0], max_seq, max_seq), FLOAT32)
        scores = self.gemm_batched(q, k, transpose_b=True, out=scores)  # (B * N, S, S)
        weights = self.fused_scale_mask_softmax(
            scores,
            batch.attn_mask,
            num_heads=q.shape[0] // batch.batch,
            scale=scale,
            window_left=window[0],
            window_right=window[1],
            position_bias=position_bias,
            out=scores,
        )  # (B * N, S, S)
        heads = self.alloc_zeros(q.shape, v.dtype)
        return self.gemm_batched(weights, v, out=heads)  # (B * N, S, D)

    def pool(
        self,
        x: T,
        batch: BatchInputs[T],
        modes: Sequence[PoolMode],
        *,
        dim: int | None = None,
        normalize: bool = False,
    ) -> NDArray[np.float32]:
        pooled_width(x, batch, modes, dim)
        columns = [self._pool_one(x, batch, mode) for mode in modes]  # each (B, E)
        pooled = np.concatenate(columns, axis=1, dtype=np.float32)[:, :dim]  # (B, dim)
        if normalize:
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), UNIT_EPS)
        return np.ascontiguousarray(pooled)

    def _pool_one(self, x: T, batch: BatchInputs[T], mode: PoolMode) -> NDArray[np.float32]:
        """One mode of `pool`: (T, E) -> (B, E) on the host."""
        lengths = np.asarray(batch.seq_lengths)  # (B,)
        skip = np.asarray(batch.pool_skip)  # (B,)
        ends = np.cumsum(lengths)  # (B,)
        if mode in ("cls", "last"):
            rows = ends - lengths + skip if mode == "cls" else ends - 1  # (B,)
            picked = self.embedding_lookup(self.from_host(rows.astype(np.int32)), x)  # (B, E)
            return self.to_host(picked).astype(np.float32, copy=False)
        position = np.arange(batch.max_seq)  # (S,)
        kept = (position >= skip[:, None]) & (position < lengths[:, None])  # (B, S)
        weights = kept * (position + 1) if mode == "weighted_mean" else kept  # (B, S)
        mask = self.from_host(weights.astype(np.float32))
        padded = self.pad_to_batch(x, seq_lengths=batch.seq_lengths, max_seq=batch.max_seq)
        if mode == "max":
            return self.to_host(self.max_pool(padded, mask))
        pooled: NDArray[np.float32] = self.to_host(self.mean_pool(padded, mask))  # (B, E)
        if mode == "mean_sqrt_len":
            pooled = pooled * np.sqrt((lengths - skip)[:, None].astype(np.float32))
        return pooled


def require_norm(op: str, norm: NormWeights[T]) -> None:
    """Refuse a norm of another kind than those of `NormKind`, and an RMS norm with a bias."""
    if norm.kind not in get_args(NormKind):
        raise DriverError(f"{op}: unknown norm '{norm.kind}', have {', '.join(get_args(NormKind))}")
    if norm.kind == "rms" and norm.bias is not None:
        raise DriverError(f"{op}: an RMS norm has no bias")


def require_order(op: str, order: NormOrder) -> None:
    """Refuse an order that `NormOrder` does not have."""
    if order not in get_args(NormOrder):
        known = ", ".join(get_args(NormOrder))
        raise DriverError(f"{op}: unknown order '{order}', have {known}")


def pooled_width(x: T, batch: BatchInputs[T], modes: Sequence[PoolMode], dim: int | None) -> int:
    """How many values a vector of `pool` has, before `dim` cuts it.

    Refuses tokens that are not the batch's, modes that `PoolMode` does not have, and a `dim` beyond
    the width.
    """
    shapes.flat_batch("pool", x.shape, batch)
    if not modes:
        raise ShapeError("pool: no modes")
    for mode in modes:
        if mode not in get_args(PoolMode):
            known = ", ".join(get_args(PoolMode))
            raise DriverError(f"pool: unknown mode '{mode}', have {known}")
    width = len(modes) * x.shape[1]
    if dim is not None and not 1 <= dim <= width:
        raise ShapeError(f"pool: dim is {dim}, wanted 1 to {width}")
    return width


def _band(left: int | None, right: int | None, position_bias: T | None) -> int | None:
    """Width of the band that equals a symmetric window; None where there is no such band."""
    if left is None or left != right or position_bias is not None:
        return None
    return 2 * left + 1
