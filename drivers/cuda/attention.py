"""Unpadded attention of the CUDA driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from drivers import dtypes, shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launch import STORAGE
from drivers.cuda.launches import flash_attention, heads, varlen_attention
from drivers.errors import DtypeError
from drivers.types import BatchInputs, QkNorm, Rope


@dataclass(frozen=True)
class _Tables:
    """Rotary tables as the kernels take them: (P, pairs) or (B, P, pairs), or none at all."""

    cos: Array | None = None
    sin: Array | None = None
    count: int = 0  # 1, or B
    positions: int = 0
    pairs: int = 0


class CudaAttention(CudaOps):
    """`drivers.protocol.Forward.attention` in one launch, or two with a q/k norm.

    Heads of `flash_attention.HEAD_DIMS` in float16 or bfloat16 run on tensor cores; other sizes up
    to 256, and float32, in plain arithmetic (`varlen_attention`). A rotation is part of the norm's
    launch; without a norm, of the attention's where `flash_attention.rotates`, or else a launch.
    """

    def attention(
        self,
        qkv: Array,
        batch: BatchInputs[Array],
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        rope: Rope[Array] | None = None,
        qk_norm: QkNorm[Array] | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        causal: bool = False,
        position_bias: Array | None = None,
    ) -> Array:
        op, max_seq = "attention", batch.max_seq
        shapes.flat_batch(op, qkv.shape, batch)
        shapes.reach(op, window_left, window_right)
        kv_heads, head_dim = shapes.qkv(op, qkv.shape, num_heads, kv_heads, head_dim)
        if qkv.dtype not in STORAGE:
            have = ", ".join(str(known) for known in STORAGE)
            raise DtypeError(f"{op}: qkv has dtype {qkv.dtype}, wanted one of {have}")
        scores = (batch.batch * num_heads, max_seq, max_seq)
        bias_shape = None if position_bias is None else position_bias.shape
        shapes.softmax(op, scores, (batch.batch, max_seq), num_heads, position_bias=bias_shape)
        dtypes.require(op, "position_bias", position_bias, dtypes.FLOAT32)

        theme = self._attention_theme(qkv.dtype, head_dim)
        sizes = {"batch": batch.batch, "max_seq": max_seq, "num_heads": num_heads}
        right = 0 if causal else window_right
        tables = _tables_of(rope, batch, num_heads, head_dim)
        rotating = (
            theme == "flash_attention"
            and qk_norm is None
            and flash_attention.rotates(
                max_seq=max_seq,
                head_dim=head_dim,
                pairs=tables.pairs,
                window_left=window_left,
                window_right=right,
            )
        )
        if theme == "flash_attention":
            launch = flash_attention.flash_attention(head_dim=head_dim, rotating=rotating, **sizes)
        else:
            launch = varlen_attention.varlen_attention(head_dim=head_dim, **sizes)

        qk, qk_heads = qkv, num_heads + 2 * kv_heads
        if qk_norm is not None or (rope is not None and not rotating):
            qk = self._norm_and_rotate(qkv, batch, num_heads, kv_heads, head_dim, tables, qk_norm)
            qk_heads = num_heads + kv_heads
        out = self._empty((len(qkv), num_heads * head_dim), qkv.dtype)
        if not len(qkv):
            return out
        positions = 0 if position_bias is None else (position_bias.shape[1] + 1) // 2
        numbers = [positions, num_heads, kv_heads, qk_heads, max_seq]
        table_rows = tables.positions if tables.count > 1 else 0
        self._launch(
            theme,
            qkv.dtype,
            launch,
            *(out, qk, qkv, batch.cu_seqlens, position_bias),
            *map(np.int32, numbers if theme == "flash_attention" else [*numbers, head_dim]),
            np.float32(head_dim**-0.5 if scale is None else scale),
            _limit(window_left, max_seq),
            _limit(right, max_seq),
            *((tables.cos, tables.sin, np.int32(table_rows)) if rotating else ()),
        )
        return out

    def _attention_theme(self, dtype: np.dtype[Any], head_dim: int) -> str:
        """Whose kernel attends: the dtype and the head size decide, nothing else."""
        on_tensor_cores = dtype in flash_attention.DTYPES and head_dim in flash_attention.HEAD_DIMS
        return "flash_attention" if on_tensor_cores else "varlen_attention"

    def _norm_and_rotate(
        self,
        qkv: Array,
        batch: BatchInputs[Array],
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        tables: _Tables,
        qk_norm: QkNorm[Array] | None,
    ) -> Array:
        """The heads of q and k, normed and rotated: (T, (N + 2 KV) D) -> (T, (N + KV) D)."""
        q_weight = k_weight = None
        eps = 0.0
        if qk_norm is not None:
            q_weight, k_weight, eps = qk_norm.q_weight, qk_norm.k_weight, qk_norm.eps
            for weight in (q_weight, k_weight):
                shapes.require("rms_norm", "weight", weight.shape, (head_dim,))
                dtypes.require("rms_norm", "weight", weight, qkv.dtype)
        out = self._empty((len(qkv), (num_heads + kv_heads) * head_dim), qkv.dtype)
        if not len(qkv):
            return out
        launch = heads.norm_and_rotate(tokens=len(qkv), head_dim=head_dim, pairs=tables.pairs)
        of_tables = (tables.count, tables.positions, tables.pairs)
        sizes = (batch.batch, *of_tables, num_heads, kv_heads, head_dim)
        out_heads = num_heads + kv_heads
        tensors = (out, qkv, q_weight, k_weight, tables.cos, tables.sin, batch.cu_seqlens)
        numbers = [np.int32(n) for n in (*sizes, out_heads)]
        self._launch("heads", qkv.dtype, launch, *tensors, *numbers, np.float32(eps))
        return out


def _tables_of(
    rope: Rope[Array] | None, batch: BatchInputs[Array], num_heads: int, head_dim: int
) -> _Tables:
    """Raises ShapeError and DtypeError for tables that do not fit the batch and its heads."""
    if rope is None:
        return _Tables()
    cos, sin = rope.cos, rope.sin
    heads_shape = (batch.batch * num_heads, batch.max_seq, head_dim)
    shapes.rope("apply_rope", heads_shape, cos.shape, sin.shape)
    if len(cos.shape) == 3:
        shapes.require("apply_rope", "cos", cos.shape, (batch.batch, None, None))
    dtypes.require("apply_rope", "cos", cos, dtypes.FLOAT32)
    dtypes.require("apply_rope", "sin", sin, dtypes.FLOAT32)
    count = batch.batch if len(cos.shape) == 3 else 1
    return _Tables(cos, sin, count, *cos.shape[-2:])


def _limit(window: int | None, max_seq: int) -> np.int32:
    """A window as the kernels take it: -1 for none, and none wider than a sequence."""
    return np.int32(-1 if window is None else min(window, max_seq))
