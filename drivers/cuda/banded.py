"""Attention within a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drivers import shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launch import GRID_X_LIMIT, require_blocks
from drivers.cuda.launches import banded, softmax
from drivers.cuda.storage import mix_of, storage_of


class CudaBanded(CudaOps):
    """`drivers.primitives.attention.Banded`: tiles of queries against the keys near them."""

    def banded_qk(self, q: Array, k: Array, *, window: int, out: Array | None = None) -> Array:
        op = "banded_qk"
        shape = shapes.banded_qk(op, q.shape, k.shape, window)
        storage_of(op, q, k)
        out = self._out(op, out, shape, q.dtype)
        storage = storage_of(op, out, q, k)
        if not out.size:
            return out
        groups, seq, head_dim = q.shape
        launch = banded.banded_qk(mix=mix_of(storage, out, q, k), groups=groups, seq=seq)
        sizes = (seq, groups // k.shape[0], head_dim, window)
        self._launch("banded", storage, launch, out, q, k, *map(np.int32, sizes))
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
        storage_of(op, scores)
        out = self._out(op, out, scores.shape, scores.dtype)
        storage = storage_of(op, out, scores)
        if not out.size:
            return out
        window = scores.shape[-1]
        if seq_lengths is None:
            groups, seq, heads, lengths = 1, scores.size // window, 1, None
            require_blocks(op, "rows", seq, GRID_X_LIMIT)
        else:
            groups, seq, _ = scores.shape
            heads = groups // len(seq_lengths)
            lengths = self.device.upload(np.asarray(seq_lengths, dtype=np.int32))
        launch = softmax.banded_softmax(
            mix=mix_of(storage, out, scores), groups=groups, seq=seq, window=window
        )
        sizes = (np.int32(seq), np.int32(heads), np.int32(window))
        self._launch("softmax", storage, launch, out, scores, lengths, *sizes, np.float32(scale))
        return out

    def banded_sv(self, weights: Array, v: Array, *, out: Array | None = None) -> Array:
        op = "banded_sv"
        shape = shapes.banded_sv(op, weights.shape, v.shape)
        storage_of(op, weights, v)
        out = self._out(op, out, shape, v.dtype)
        storage = storage_of(op, out, weights, v)
        if not out.size:
            return out
        groups, seq, window = weights.shape
        head_dim = v.shape[2]
        mix = mix_of(storage, out, weights, v)
        launch = banded.banded_sv(mix=mix, groups=groups, seq=seq, head_dim=head_dim)
        sizes = (seq, groups // v.shape[0], head_dim, window)
        self._launch("banded", storage, launch, out, weights, v, *map(np.int32, sizes))
        return out
