"""Products, sums, activations, gates and norms on shapes alone."""

from __future__ import annotations

from math import prod

from drivers import shapes
from drivers.activations import require_activation
from drivers.null.tensor import NullOps, NullTensor
from drivers.types import Activation


class NullArithmetic(NullOps):
    """`drivers.primitives.arithmetic` on shapes alone."""

    # ---- products

    def gemm(
        self,
        a: NullTensor,
        b: NullTensor,
        *,
        transpose_b: bool = False,
        out: NullTensor | None = None,
    ) -> NullTensor:
        shape = shapes.gemm("gemm", a.shape, b.shape, transpose_b)
        self.tally.flops_total += 2 * prod(shape) * a.shape[-1]
        return self._new("gemm", out, shape, a.dtype)

    def gemm_batched(
        self,
        a: NullTensor,
        b: NullTensor,
        *,
        transpose_b: bool = False,
        out: NullTensor | None = None,
    ) -> NullTensor:
        shape = shapes.gemm_batched("gemm_batched", a.shape, b.shape, transpose_b)
        self.tally.flops_total += 2 * prod(shape) * a.shape[-1]
        return self._new("gemm_batched", out, shape, a.dtype)

    def add_bias(
        self, x: NullTensor, bias: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        return self._row_wise("add_bias", x, out, bias=bias)

    def residual_add(
        self, hidden: NullTensor, residual: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.require("residual_add", "residual", residual.shape, hidden.shape)
        return self._new("residual_add", out, hidden.shape, hidden.dtype)

    def fused_bias_residual(
        self,
        x: NullTensor,
        bias: NullTensor,
        residual: NullTensor,
        *,
        out: NullTensor | None = None,
    ) -> NullTensor:
        shapes.require("fused_bias_residual", "residual", residual.shape, x.shape)
        return self._row_wise("fused_bias_residual", x, out, bias=bias)

    # ---- activations

    def activate(
        self, x: NullTensor, act: Activation, *, out: NullTensor | None = None
    ) -> NullTensor:
        require_activation("activate", act)
        return self._new("activate", out, x.shape, x.dtype)

    def gelu(self, x: NullTensor, *, out: NullTensor | None = None) -> NullTensor:
        return self._new("gelu", out, x.shape, x.dtype)

    def fused_bias_gelu(
        self, x: NullTensor, bias: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        return self._row_wise("fused_bias_gelu", x, out, bias=bias)

    # ---- gates

    def split_gate_value(
        self, x: NullTensor, *, out: tuple[NullTensor, NullTensor] | None = None
    ) -> tuple[NullTensor, NullTensor]:
        shape = shapes.halves("split_gate_value", x.shape)
        first, second = self._several("split_gate_value", out, (shape, shape), x.dtype)
        return first, second

    def geglu(
        self, value: NullTensor, gate: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.require("geglu", "gate", gate.shape, value.shape)
        return self._new("geglu", out, value.shape, value.dtype)

    def swiglu(
        self, value: NullTensor, gate: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.require("swiglu", "gate", gate.shape, value.shape)
        return self._new("swiglu", out, value.shape, value.dtype)

    def fused_split_geglu(self, x: NullTensor, *, out: NullTensor | None = None) -> NullTensor:
        shape = shapes.halves("fused_split_geglu", x.shape)
        return self._new("fused_split_geglu", out, shape, x.dtype)

    def fused_split_gate(
        self, x: NullTensor, act: Activation, *, out: NullTensor | None = None
    ) -> NullTensor:
        require_activation("fused_split_gate", act)
        shape = shapes.halves("fused_split_gate", x.shape)
        return self._new("fused_split_gate", out, shape, x.dtype)

    # ---- norms

    def layer_norm(
        self,
        x: NullTensor,
        weight: NullTensor,
        bias: NullTensor | None,
        *,
        eps: float,
        out: NullTensor | None = None,
    ) -> NullTensor:
        return self._row_wise("layer_norm", x, out, weight=weight, bias=bias)

    def fused_residual_layernorm(
        self,
        hidden: NullTensor,
        residual: NullTensor,
        weight: NullTensor,
        bias: NullTensor | None,
        *,
        eps: float,
        out: NullTensor | None = None,
    ) -> NullTensor:
        op = "fused_residual_layernorm"
        shapes.require(op, "residual", residual.shape, hidden.shape)
        return self._row_wise(op, hidden, out, weight=weight, bias=bias)

    def rms_norm(
        self, x: NullTensor, weight: NullTensor, *, eps: float, out: NullTensor | None = None
    ) -> NullTensor:
        return self._row_wise("rms_norm", x, out, weight=weight)

    def fused_residual_rmsnorm(
        self,
        hidden: NullTensor,
        residual: NullTensor,
        weight: NullTensor,
        *,
        eps: float,
        out: NullTensor | None = None,
    ) -> NullTensor:
        op = "fused_residual_rmsnorm"
        shapes.require(op, "residual", residual.shape, hidden.shape)
        return self._row_wise(op, hidden, out, weight=weight)

    def l2_normalize(self, x: NullTensor, *, out: NullTensor | None = None) -> NullTensor:
        return self._row_wise("l2_normalize", x, out)
