"""Primitives of products, sums, activations, gates and norms."""

from __future__ import annotations

from typing import Protocol

from drivers.types import Activation, T


class Products(Protocol[T]):
    """Matrix products, and the element-wise steps that follow them."""

    def gemm(self, a: T, b: T, *, transpose_b: bool = False, out: T | None = None) -> T:
        """a @ b: (m, k) and (k, n), or (n, k) with `transpose_b`, -> (m, n) in a's dtype.

        float16 inputs with a float32 `out` are the mixed product: nothing is rounded to float16.
        """
        ...

    def gemm_batched(self, a: T, b: T, *, transpose_b: bool = False, out: T | None = None) -> T:
        """One product per leading index: (G, m, k) and (G, k, n) or (G, n, k) -> (G, m, n).

        `b` may have fewer groups, G / r: each then serves r consecutive groups of `a`, as a
        key/value head serves its query heads.
        """
        ...

    def add_bias(self, x: T, bias: T, *, out: T | None = None) -> T:
        """x + bias, row by row: (rows, cols) and (cols,). `out` may be `x`."""
        ...

    def residual_add(self, hidden: T, residual: T, *, out: T | None = None) -> T:
        """hidden + residual of one shape. `out` may be either."""
        ...

    def fused_bias_residual(self, x: T, bias: T, residual: T, *, out: T | None = None) -> T:
        """x + bias + residual: (rows, cols). `out` may be `x` or `residual`."""
        ...


class Activations(Protocol[T]):
    """Element-wise non-linearities. `out` may be the input."""

    def activate(self, x: T, act: Activation, *, out: T | None = None) -> T:
        """act(x) of any shape; `gelu` is exact (erf), as in Hendrycks and Gimpel 2016."""
        ...

    def gelu(self, x: T, *, out: T | None = None) -> T:
        """x * Phi(x) with the exact normal distribution function Phi (erf)."""
        ...

    def fused_bias_gelu(self, x: T, bias: T, *, out: T | None = None) -> T:
        """gelu(x + bias), row by row: (rows, cols) and (cols,)."""
        ...


class Gates(Protocol[T]):
    """Gated linear units (Shazeer 2020): which half is activated is each operation's own."""

    def split_gate_value(self, x: T, *, out: tuple[T, T] | None = None) -> tuple[T, T]:
        """(rows, 2 F) -> its first and its second half, (rows, F) each."""
        ...

    def geglu(self, value: T, gate: T, *, out: T | None = None) -> T:
        """gelu(value) * gate, of one shape; gelu is the erf form. `out` may be either."""
        ...

    def swiglu(self, value: T, gate: T, *, out: T | None = None) -> T:
        """value * silu(gate), of one shape. `out` may be either."""
        ...

    def fused_split_geglu(self, x: T, *, out: T | None = None) -> T:
        """gelu(first half) * second half: (rows, 2 F) -> (rows, F), in one pass."""
        ...

    def fused_split_gate(self, x: T, act: Activation, *, out: T | None = None) -> T:
        """act(first half) * second half: (rows, 2 F) -> (rows, F), in one pass."""
        ...


class Norms(Protocol[T]):
    """Row-wise normalisation with float32 statistics. A row is the last dimension."""

    def layer_norm(self, x: T, weight: T, bias: T | None, *, eps: float, out: T | None = None) -> T:
        """(x - mean) / sqrt(var + eps) * weight + bias over the last dimension (Ba et al. 2016).

        weight (cols,); bias (cols,) or None. var is the biased variance. `out` may be `x`.
        """
        ...

    def fused_residual_layernorm(
        self,
        hidden: T,
        residual: T,
        weight: T,
        bias: T | None,
        *,
        eps: float,
        out: T | None = None,
    ) -> T:
        """layer_norm(hidden + residual), the sum in float32. `out` may be either input."""
        ...

    def rms_norm(self, x: T, weight: T, *, eps: float, out: T | None = None) -> T:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019).

        `out` may be `x`.
        """
        ...

    def fused_residual_rmsnorm(
        self, hidden: T, residual: T, weight: T, *, eps: float, out: T | None = None
    ) -> T:
        """rms_norm(hidden + residual), the sum in float32. `out` may be either input."""
        ...

    def l2_normalize(self, x: T, *, out: T | None = None) -> T:
        """x / max(norm(x), 1e-12), row by row: a zero row stays zero. `out` may be `x`."""
        ...
