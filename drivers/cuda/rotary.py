"""Rotary positions of padded heads."""

from __future__ import annotations

import numpy as np

from drivers import dtypes, shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launches import rotary
from drivers.cuda.storage import mix_of, storage_of


class CudaRotary(CudaOps):
    """`drivers.primitives.attention.Rotary`."""

    def apply_rope(self, x: Array, cos: Array, sin: Array, *, out: Array | None = None) -> Array:
        op = "apply_rope"
        shapes.rope(op, x.shape, cos.shape, sin.shape)
        storage_of(op, x)
        dtypes.require(op, "cos", cos, dtypes.FLOAT32)
        dtypes.require(op, "sin", sin, dtypes.FLOAT32)
        out = self._out(op, out, x.shape, x.dtype)
        storage = storage_of(op, out, x)
        groups, seq, head_dim = x.shape
        positions, pairs = cos.shape[-2:]
        passing = 0 if out is x else head_dim - 2 * pairs
        if not groups * seq * (pairs + passing):
            return out
        launch = rotary.apply_rope(
            mix=mix_of(storage, out, x),
            groups=groups,
            seq=seq,
            head_dim=head_dim,
            pairs=pairs,
            passing=passing,
        )
        heads_per_table = groups if len(cos.shape) == 2 else groups // cos.shape[0]
        sizes = (seq, positions, head_dim, pairs, passing, heads_per_table)
        self._launch("rotary", storage, launch, out, x, cos, sin, *map(np.int32, sizes))
        return out
