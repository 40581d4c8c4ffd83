"""Batches of the CUDA driver: host encodings, flat and padded tokens, and their heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers import dtypes, shapes
from drivers.batches import batch_inputs
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launches import layout as launches
from drivers.cuda.storage import flagged, storage_of
from drivers.dtypes import FLOAT32
from drivers.types import BatchInputs, Encoding, lengths_of


class CudaBatching(CudaOps):
    """`drivers.primitives.memory.Batching`, and the moves of heads and the mask of
    `drivers.primitives.attention.AttentionSteps`."""

    def prepare_batch(self, encodings: Sequence[Encoding], max_seq: int) -> BatchInputs[Array]:
        upload = self._upload_for_batch
        return batch_inputs("prepare_batch", encodings, max_seq, padded=True, upload=upload)

    def prepare_batch_unpadded(self, encodings: Sequence[Encoding]) -> BatchInputs[Array]:
        op, longest = "prepare_batch_unpadded", max(lengths_of(encodings), default=0)
        return batch_inputs(op, encodings, longest, padded=False, upload=self._upload_for_batch)

    def _upload_for_batch(self, array: NDArray[Any]) -> Array:
        """Ids, masks and sequence starts of a batch, on the device."""
        return self.device.upload(array)

    # ---- padding: one head as wide as a token

    def pad_to_batch(
        self, flat: Array, *, seq_lengths: Sequence[int], max_seq: int, out: Array | None = None
    ) -> Array:
        op = "pad_to_batch"
        shapes.tokens(op, flat.shape, seq_lengths, max_seq)
        storage_of(op, flat)
        batch, dim = len(seq_lengths), flat.shape[1]
        out = self._out(op, out, (batch, max_seq, dim), flat.dtype)
        self._split(op, (out,), flat, seq_lengths, batch, max_seq, (1, 0, dim))
        return out

    def unpad_from_batch(
        self, padded: Array, *, seq_lengths: Sequence[int], out: Array | None = None
    ) -> Array:
        op = "unpad_from_batch"
        shapes.require(op, "padded", padded.shape, (len(seq_lengths), None, None))
        batch, seq, dim = padded.shape
        shape = (sum(seq_lengths), dim)
        shapes.tokens(op, shape, seq_lengths, seq)
        storage_of(op, padded)
        out = self._out(op, out, shape, padded.dtype)
        self._join(op, out, padded, seq_lengths, batch, seq, (1, dim))
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
        storage_of(op, qkv)
        batch, seq, _ = qkv.shape
        wanted = shapes.qkv_heads(batch, seq, num_heads, kv_heads, head_dim)
        q, k, v = self._outs(op, out, wanted, qkv.dtype)
        self._split(op, (q, k, v), qkv, None, batch, seq, (num_heads, kv_heads, head_dim))
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
        storage_of(op, flat)
        batch = len(seq_lengths)
        wanted = shapes.qkv_heads(batch, max_seq, num_heads, kv_heads, head_dim)
        q, k, v = self._outs(op, out, wanted, flat.dtype)
        heads = (num_heads, kv_heads, head_dim)
        self._split(op, (q, k, v), flat, seq_lengths, batch, max_seq, heads)
        return q, k, v

    def split_heads(self, x: Array, *, num_heads: int, out: Array | None = None) -> Array:
        op = "split_heads"
        shapes.require(op, "x", x.shape, (None, None, None))
        batch, seq, hidden = x.shape
        head_dim = shapes.heads(op, hidden, num_heads)
        storage_of(op, x)
        out = self._out(op, out, (batch * num_heads, seq, head_dim), x.dtype)
        self._split(op, (out,), x, None, batch, seq, (num_heads, 0, head_dim))
        return out

    def attn_reshape(self, heads: Array, *, num_heads: int, out: Array | None = None) -> Array:
        op = "attn_reshape"
        shapes.require(op, "heads", heads.shape, (None, None, None))
        groups, seq, head_dim = heads.shape
        batch = shapes.heads(op, groups, num_heads)
        storage_of(op, heads)
        out = self._out(op, out, (batch, seq, num_heads * head_dim), heads.dtype)
        self._join(op, out, heads, None, batch, seq, (num_heads, head_dim))
        return out

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
        storage_of(op, heads)
        _, seq, head_dim = heads.shape
        out = self._out(op, out, shape, heads.dtype)
        self._join(op, out, heads, seq_lengths, len(seq_lengths), seq, (num_heads, head_dim))
        return out

    def build_attn_mask(self, int_mask: Array, *, out: Array | None = None) -> Array:
        op = "build_attn_mask"
        shapes.require(op, "int_mask", int_mask.shape, (None, None))
        dtypes.require(op, "int_mask", int_mask, dtypes.INT32)
        out = self._out(op, out, int_mask.shape, FLOAT32, only=FLOAT32)
        if out.size:
            launch = launches.build_attn_mask(count=out.size)
            self._launch("layout", FLOAT32, launch, out, int_mask, np.int64(out.size))
        return out

    # ---- the two moves

    def _split(
        self,
        op: str,
        outs: tuple[Array, ...],
        tokens: Array,
        seq_lengths: Sequence[int] | None,
        batch: int,
        seq: int,
        heads: tuple[int, int, int],
    ) -> None:
        """Tokens, flat where there are lengths, to heads (·, S, D): of q, or of q, k and v.

        heads: N, KV and D.
        """
        q, k, v = (*outs, None, None)[:3]
        build = storage_of(op, tokens, q, k, v)
        num_heads, kv_heads, head_dim = heads
        if q.size:
            launch = launches.split_heads(
                batch=batch, seq=seq, heads=num_heads + 2 * kv_heads, head_dim=head_dim
            )
            sizes = [np.int32(size) for size in (batch, seq, *heads)]
            arguments = (*flagged(q, k, v, tokens), self._cu_seqlens(seq_lengths), *sizes)
            self._launch("layout", build, launch, *arguments)

    def _join(
        self,
        op: str,
        tokens: Array,
        x: Array,
        seq_lengths: Sequence[int] | None,
        batch: int,
        seq: int,
        heads: tuple[int, int],
    ) -> None:
        """Heads (B * N, S, D) to tokens, flat where there are lengths. heads: N and D."""
        build = storage_of(op, tokens, x)
        num_heads, head_dim = heads
        if tokens.size:
            launch = launches.join_heads(batch=batch, seq=seq, heads=num_heads, head_dim=head_dim)
            sizes = [np.int32(size) for size in (batch, seq, *heads)]
            arguments = (*flagged(tokens, x), self._cu_seqlens(seq_lengths), *sizes)
            self._launch("layout", build, launch, *arguments)

    def _cu_seqlens(self, seq_lengths: Sequence[int] | None) -> Array | None:
        """Where each sequence starts among flat tokens, on the device: (B + 1,) int32."""
        if seq_lengths is None:
            return None
        return self.device.upload(np.array([0, *accumulate(seq_lengths)], np.int32))
