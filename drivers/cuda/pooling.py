"""Pooling on the CUDA device, always into float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drivers import dtypes, shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launches import norms
from drivers.cuda.launches import pooling as launches
from drivers.cuda.storage import storage_of, wide_bits
from drivers.dtypes import FLOAT32
from drivers.forward_ops import UNIT_EPS, pooled_width
from drivers.types import BatchInputs, PoolMode


class CudaPooling(CudaOps):
    """`drivers.primitives.attention.Pooling` and `pool`."""

    def cls_pool(self, hidden: Array, *, out: Array | None = None) -> Array:
        op = "cls_pool"
        shape = shapes.cls_pool(op, hidden.shape)
        return self._pool_padded(op, shape, hidden, None, out)

    def mean_pool(self, hidden: Array, mask: Array, *, out: Array | None = None) -> Array:
        op = "mean_pool"
        shape = shapes.pooled(op, hidden.shape, mask.shape)
        return self._pool_padded(op, shape, hidden, mask, out)

    def max_pool(self, hidden: Array, mask: Array, *, out: Array | None = None) -> Array:
        op = "max_pool"
        shape = shapes.pooled(op, hidden.shape, mask.shape)
        return self._pool_padded(op, shape, hidden, mask, out, largest=True)

    def _pool_padded(
        self,
        op: str,
        shape: tuple[int, ...],
        hidden: Array,
        mask: Array | None,
        out: Array | None,
        *,
        largest: bool = False,
    ) -> Array:
        storage = storage_of(op, hidden)
        dtypes.require(op, "mask", mask, FLOAT32)
        out = self._out(op, out, shape, FLOAT32, only=FLOAT32)
        sequences, width = shape
        if sequences * width:
            self._launch(
                "pooling",
                storage,
                launches.pool_padded(op, sequences=sequences, width=width, storage=storage),
                out,
                hidden,
                mask,
                np.int32(hidden.shape[1]),
                np.int32(width),
                np.int32(largest),
            )
        return out

    def pool(
        self,
        x: Array,
        batch: BatchInputs[Array],
        modes: Sequence[PoolMode],
        *,
        dim: int | None = None,
        normalize: bool = False,
    ) -> NDArray[np.float32]:
        op = "pool"
        width = pooled_width(x, batch, modes, dim)
        dim = width if dim is None else dim
        storage = storage_of(op, x)
        if not batch.batch * dim:
            return np.zeros((batch.batch, dim), np.float32)
        skips = np.asarray(batch.pool_skip, np.int32)  # (B,)
        on_device = self.device.upload(skips) if skips.any() else None
        out = self._empty((batch.batch, dim), FLOAT32)
        for first in range(0, len(modes), launches.MODES_A_LAUNCH):
            some = modes[first : first + launches.MODES_A_LAUNCH]
            self._launch(
                "pooling",
                storage,
                launches.pool(
                    op,
                    sequences=batch.batch,
                    width=x.shape[1],
                    storage=storage,
                    modes=len(some),
                ),
                out,
                x,
                batch.cu_seqlens,
                on_device,
                np.int64(launches.packed_modes(some)),
                np.int32(first),
                np.int32(x.shape[1]),
                np.int32(dim),
            )
        if normalize:
            self._launch(
                "norms",  # as it is built for the model's own norms
                storage,
                norms.l2_normalize(op, rows=batch.batch),
                out,
                out,
                wide_bits(storage, norms.WIDE, OUT=out, X=out),
                np.int64(batch.batch),
                np.int32(dim),
                UNIT_EPS,
            )
        pooled: NDArray[np.float32] = self.device.download(out)
        return pooled
