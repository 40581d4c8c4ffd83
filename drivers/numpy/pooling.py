"""Pooling of padded batches in NumPy, always into float32."""

from __future__ import annotations

import numpy as np

from drivers import dtypes, shapes
from drivers.numpy.base import Array, NumpyOps, float32


class NumpyPooling(NumpyOps):
    """`drivers.primitives.attention.Pooling` in NumPy."""

    def cls_pool(self, hidden: Array, *, out: Array | None = None) -> Array:
        shape = shapes.cls_pool("cls_pool", hidden.shape)
        dtypes.require_float("cls_pool", hidden)
        out = self._out("cls_pool", out, shape, dtypes.FLOAT32, only=dtypes.FLOAT32)
        out[...] = hidden[:, 0]
        return out

    def mean_pool(self, hidden: Array, mask: Array, *, out: Array | None = None) -> Array:
        out = self._pooled("mean_pool", hidden, mask, out)
        kept = np.where((mask != 0)[:, :, None], float32(hidden), np.float32(0))  # (B, S, E)
        np.matmul(mask[:, None, :], kept, out=out[:, None, :])
        total = mask.sum(axis=1, keepdims=True)
        out /= np.where(total == 0, np.float32(1), total)
        return out

    def max_pool(self, hidden: Array, mask: Array, *, out: Array | None = None) -> Array:
        out = self._pooled("max_pool", hidden, mask, out)
        kept = np.where((mask != 0)[:, :, None], float32(hidden), np.float32(-np.inf))
        np.max(kept, axis=1, initial=-np.inf, out=out)
        out[~mask.any(axis=1)] = 0
        return out

    def _pooled(self, op: str, hidden: Array, mask: Array, out: Array | None) -> Array:
        """The result, checked or new, of pooling `hidden` under `mask`."""
        shape = shapes.pooled(op, hidden.shape, mask.shape)
        dtypes.require_float(op, hidden)
        dtypes.require(op, "mask", mask, dtypes.FLOAT32)
        return self._out(op, out, shape, dtypes.FLOAT32, only=dtypes.FLOAT32)
