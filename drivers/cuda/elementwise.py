"""Sums and activations of the CUDA driver, each in one pass."""

from __future__ import annotations

import numpy as np

from drivers import shapes
from drivers.activations import require_activation
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launches import elementwise as launches
from drivers.cuda.storage import flagged, storage_of
from drivers.types import Activation


class CudaElementwise(CudaOps):
    """The sums of `drivers.primitives.arithmetic.Products`, and its `Activations`."""

    def add_bias(self, x: Array, bias: Array, *, out: Array | None = None) -> Array:
        return self._elementwise("add_bias", x, bias=bias, out=out)

    def residual_add(self, hidden: Array, residual: Array, *, out: Array | None = None) -> Array:
        return self._elementwise("residual_add", hidden, residual=residual, out=out)

    def fused_bias_residual(
        self, x: Array, bias: Array, residual: Array, *, out: Array | None = None
    ) -> Array:
        return self._elementwise("fused_bias_residual", x, bias=bias, residual=residual, out=out)

    def activate(self, x: Array, act: Activation, *, out: Array | None = None) -> Array:
        return self._elementwise("activate", x, act=act, out=out)

    def gelu(self, x: Array, *, out: Array | None = None) -> Array:
        return self._elementwise("gelu", x, act="gelu", out=out)

    def fused_bias_gelu(self, x: Array, bias: Array, *, out: Array | None = None) -> Array:
        return self._elementwise("fused_bias_gelu", x, bias=bias, act="gelu", out=out)

    def _elementwise(
        self,
        op: str,
        x: Array,
        *,
        bias: Array | None = None,
        act: Activation | None = None,
        residual: Array | None = None,
        out: Array | None = None,
    ) -> Array:
        """act(x + bias) + residual in one pass, rounded once: x and residual (rows, cols), bias
        (cols,). `out` may be `x` or `residual`.

        Raises DriverError for an unknown activation, ShapeError and DtypeError for what does not
        fit.
        """
        if act is not None:
            require_activation(op, act)
        rows, cols = (1, x.size) if bias is None else shapes.rows_cols(op, x)
        if bias is not None:
            shapes.require(op, "bias", bias.shape, (cols,))
        if residual is not None:
            shapes.require(op, "residual", residual.shape, x.shape)
        storage_of(op, *(given for given in (x, bias, residual) if given is not None))
        out = self._out(op, out, x.shape, x.dtype)
        build = storage_of(op, out, x, bias, residual)
        if out.size:
            launch = launches.elementwise(act=act, rows=rows, cols=cols)
            sizes = (np.int64(rows), np.int64(cols))
            self._launch("elementwise", build, launch, *flagged(out, x, bias, residual), *sizes)
        return out
