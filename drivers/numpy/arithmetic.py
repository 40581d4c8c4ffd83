"""Products, sums, activations, gates and norms of the NumPy driver."""

from __future__ import annotations

import numpy as np

from drivers import dtypes, shapes
from drivers.activations import activate, gated, require_activation
from drivers.numpy import rows
from drivers.numpy.base import Array, NumpyOps, float32
from drivers.types import Activation, NormKind

L2_EPS = 1e-12  # torch.nn.functional.normalize


class NumpyArithmetic(NumpyOps):
    """`drivers.primitives.arithmetic` in NumPy."""

    # ---- products and sums

    def gemm(
        self, a: Array, b: Array, *, transpose_b: bool = False, out: Array | None = None
    ) -> Array:
        shape = shapes.gemm("gemm", a.shape, b.shape, transpose_b)
        dtypes.require_float("gemm", a, b)
        out = self._out("gemm", out, shape, a.dtype)
        _product(a, b, transpose_b, out)
        return out

    def gemm_batched(
        self, a: Array, b: Array, *, transpose_b: bool = False, out: Array | None = None
    ) -> Array:
        shape = shapes.gemm_batched("gemm_batched", a.shape, b.shape, transpose_b)
        dtypes.require_float("gemm_batched", a, b)
        out = self._out("gemm_batched", out, shape, a.dtype)
        if len(a) == len(b):
            _product(a, b, transpose_b, out)
        else:  # the rows of the groups that share one of b, as one taller group
            rows_each = len(a) // len(b) * a.shape[1]
            tall = a.reshape(len(b), rows_each, a.shape[2])
            _product(tall, b, transpose_b, out.reshape(len(b), rows_each, shape[2]))
        return out

    def add_bias(self, x: Array, bias: Array, *, out: Array | None = None) -> Array:
        _, cols = shapes.rows_cols("add_bias", x)
        shapes.require("add_bias", "bias", bias.shape, (cols,))
        return self._sum("add_bias", out, x, bias)

    def residual_add(self, hidden: Array, residual: Array, *, out: Array | None = None) -> Array:
        shapes.require("residual_add", "residual", residual.shape, hidden.shape)
        return self._sum("residual_add", out, hidden, residual)

    def fused_bias_residual(
        self, x: Array, bias: Array, residual: Array, *, out: Array | None = None
    ) -> Array:
        _, cols = shapes.rows_cols("fused_bias_residual", x)
        shapes.require("fused_bias_residual", "bias", bias.shape, (cols,))
        shapes.require("fused_bias_residual", "residual", residual.shape, x.shape)
        return self._sum("fused_bias_residual", out, x, residual, bias)

    def _sum(self, op: str, out: Array | None, first: Array, *others: Array) -> Array:
        """The sum in float32, rounded once; `out` may be the first or second summand."""
        dtypes.require_float(op, first, *others)
        out = self._out(op, out, first.shape, first.dtype)
        if out.dtype == np.float32:
            np.add(first, others[0], out=out, dtype=np.float32)
            for other in others[1:]:
                out += other
            return out
        total = float32(first)
        for other in others:
            total = total + other
        out[...] = total
        return out

    # ---- activations and gates

    def activate(self, x: Array, act: Activation, *, out: Array | None = None) -> Array:
        require_activation("activate", act)
        return self._activate("activate", x, act, None, out)

    def gelu(self, x: Array, *, out: Array | None = None) -> Array:
        return self._activate("gelu", x, "gelu", None, out)

    def fused_bias_gelu(self, x: Array, bias: Array, *, out: Array | None = None) -> Array:
        _, cols = shapes.rows_cols("fused_bias_gelu", x)
        shapes.require("fused_bias_gelu", "bias", bias.shape, (cols,))
        return self._activate("fused_bias_gelu", x, "gelu", bias, out)

    def _activate(
        self, op: str, x: Array, act: Activation, bias: Array | None, out: Array | None
    ) -> Array:
        dtypes.require_float(op, x, *([] if bias is None else [bias]))
        out = self._out(op, out, x.shape, x.dtype)
        activate(x, act, out, bias=None if bias is None else float32(bias))
        return out

    def split_gate_value(
        self, x: Array, *, out: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array]:
        op = "split_gate_value"
        shape = shapes.halves(op, x.shape)
        dtypes.require_float(op, x)
        first, second = self._outs(op, out, (shape, shape), x.dtype)
        first[...] = x[..., : shape[-1]]
        second[...] = x[..., shape[-1] :]
        return first, second

    def geglu(self, value: Array, gate: Array, *, out: Array | None = None) -> Array:
        shapes.require("geglu", "gate", gate.shape, value.shape)
        dtypes.require_float("geglu", value, gate)
        out = self._out("geglu", out, value.shape, value.dtype)
        gated(value, gate, "gelu", out)
        return out

    def swiglu(self, value: Array, gate: Array, *, out: Array | None = None) -> Array:
        shapes.require("swiglu", "gate", gate.shape, value.shape)
        dtypes.require_float("swiglu", value, gate)
        out = self._out("swiglu", out, value.shape, value.dtype)
        gated(gate, value, "silu", out)
        return out

    def fused_split_geglu(self, x: Array, *, out: Array | None = None) -> Array:
        return self._split_gate("fused_split_geglu", x, "gelu", out)

    def fused_split_gate(self, x: Array, act: Activation, *, out: Array | None = None) -> Array:
        require_activation("fused_split_gate", act)
        return self._split_gate("fused_split_gate", x, act, out)

    def _split_gate(self, op: str, x: Array, act: Activation, out: Array | None) -> Array:
        shape = shapes.halves(op, x.shape)
        dtypes.require_float(op, x)
        out = self._out(op, out, shape, x.dtype)
        gated(x[..., : shape[-1]], x[..., shape[-1] :], act, out)
        return out

    # ---- norms

    def layer_norm(
        self, x: Array, weight: Array, bias: Array | None, *, eps: float, out: Array | None = None
    ) -> Array:
        return self._norm("layer_norm", "layer", x, None, weight, bias, eps, out)

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
        return self._norm(op, "layer", hidden, residual, weight, bias, eps, out)

    def rms_norm(self, x: Array, weight: Array, *, eps: float, out: Array | None = None) -> Array:
        return self._norm("rms_norm", "rms", x, None, weight, None, eps, out)

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
        return self._norm(op, "rms", hidden, residual, weight, None, eps, out)

    def l2_normalize(self, x: Array, *, out: Array | None = None) -> Array:
        shapes.rows_cols("l2_normalize", x)
        dtypes.require_float("l2_normalize", x)
        out = self._out("l2_normalize", out, x.shape, x.dtype)
        wide = float32(x)
        norm = np.sqrt(np.einsum("...i,...i->...", wide, wide))[..., None]
        out[...] = wide / np.maximum(norm, np.float32(L2_EPS))
        return out

    def _norm(
        self,
        op: str,
        kind: NormKind,
        x: Array,
        residual: Array | None,
        weight: Array,
        bias: Array | None,
        eps: float,
        out: Array | None,
    ) -> Array:
        _, cols = shapes.rows_cols(op, x)
        optional = [v for v in (residual, bias) if v is not None]
        if residual is not None:
            shapes.require(op, "residual", residual.shape, x.shape)
        shapes.require(op, "weight", weight.shape, (cols,))
        if bias is not None:
            shapes.require(op, "bias", bias.shape, (cols,))
        dtypes.require_float(op, x, weight, *optional)
        out = self._out(op, out, x.shape, x.dtype)
        if out.size:
            rows.norm(
                x.reshape(-1, cols),
                float32(weight),
                None if bias is None else float32(bias),
                eps,
                out.reshape(-1, cols),
                residual=None if residual is None else residual.reshape(-1, cols),
                centred=kind == "layer",
            )
        return out


def _product(a: Array, b: Array, transpose_b: bool, out: Array) -> None:
    """out = a @ b in float32, rounded once."""
    right = float32(b)
    right = right.swapaxes(-1, -2) if transpose_b else right
    if out.dtype == np.float32:
        np.matmul(float32(a), right, out=out)
    else:
        out[...] = np.matmul(float32(a), right)
