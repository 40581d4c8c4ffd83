"""Norms on the CUDA device: each operation is one launch, a warp a row."""

from __future__ import annotations

from math import prod

import numpy as np

from drivers import shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launches import norms as launches
from drivers.cuda.storage import storage_of, wide_bits
from drivers.forward_ops import UNIT_EPS, require_norm, require_order
from drivers.types import NormKind, NormOrder, NormWeights


class CudaNorms(CudaOps):
    """`drivers.primitives.arithmetic.Norms` and `add_norm`.

    Each tensor is of the storage type or float32, whatever the others are.
    """

    def layer_norm(
        self, x: Array, weight: Array, bias: Array | None, *, eps: float, out: Array | None = None
    ) -> Array:
        return self._launch_norm("layer_norm", "layer", x, None, weight, bias, eps, out)

    def fused_residual_layernorm(
        self,
        hidden: Array,
        residual: Array,
        weight: Array,
        bias: Array | None,
        *,
        eps: float,
        out: Array | None = None,
    ) -> Array:
        op = "fused_residual_layernorm"
        return self._launch_norm(op, "layer", hidden, residual, weight, bias, eps, out)

    def rms_norm(self, x: Array, weight: Array, *, eps: float, out: Array | None = None) -> Array:
        return self._launch_norm("rms_norm", "rms", x, None, weight, None, eps, out)

    def fused_residual_rmsnorm(
        self,
        hidden: Array,
        residual: Array,
        weight: Array,
        *,
        eps: float,
        out: Array | None = None,
    ) -> Array:
        op = "fused_residual_rmsnorm"
        return self._launch_norm(op, "rms", hidden, residual, weight, None, eps, out)

    def add_norm(
        self,
        x: Array,
        residual: Array | None,
        norm: NormWeights[Array],
        *,
        order: NormOrder = "pre",
    ) -> Array:
        op = "add_norm"
        require_order(op, order)
        require_norm(op, norm)
        weights = norm.weight, norm.bias, norm.eps
        return self._launch_norm(
            op, norm.kind, x, residual, *weights, None, sandwich=order == "sandwich"
        )

    def l2_normalize(self, x: Array, *, out: Array | None = None) -> Array:
        op = "l2_normalize"
        _, cols = shapes.rows_cols(op, x)
        storage_of(op, x)
        out = self._out(op, out, x.shape, x.dtype)
        storage = storage_of(op, x, out)
        rows = prod(x.shape[:-1])
        if rows * cols:
            self._launch(
                "norms",
                storage,
                launches.l2_normalize(op, rows=rows),
                out,
                x,
                wide_bits(storage, launches.WIDE, OUT=out, X=x),
                np.int64(rows),
                np.int32(cols),
                UNIT_EPS,
            )
        return out

    def _launch_norm(
        self,
        op: str,
        kind: NormKind,
        x: Array,
        residual: Array | None,
        weight: Array,
        bias: Array | None,
        eps: float,
        out: Array | None,
        *,
        sandwich: bool = False,
    ) -> Array:
        rows, cols = shapes.rows_cols(op, x)
        if residual is not None:
            shapes.require(op, "residual", residual.shape, x.shape)
        shapes.require(op, "weight", weight.shape, (cols,))
        if bias is not None:
            shapes.require(op, "bias", bias.shape, (cols,))
        storage_of(op, x, residual, weight, bias)
        out = self._out(op, out, x.shape, x.dtype)
        storage = storage_of(op, out, x, residual, weight, bias)
        if not rows * cols:
            return out
        wide = wide_bits(
            storage,
            launches.WIDE,
            OUT=out,
            X=x,
            RESIDUAL=residual,
            WEIGHT=weight,
            BIAS=weight if bias is None else bias,
        )
        self._launch(
            "norms",
            storage,
            launches.norm(op, rows=rows, cols=cols, storage=storage, wide=int(wide)),
            out,
            x,
            residual,
            weight,
            bias,
            wide,
            np.int64(rows),
            np.int32(cols),
            np.float32(eps),
            np.int32(kind == "layer"),
            np.int32(sandwich),
        )
        return out
