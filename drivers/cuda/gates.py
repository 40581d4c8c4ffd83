"""Gated linear units of the CUDA driver, each in one pass."""

from __future__ import annotations

import numpy as np

from drivers import shapes
from drivers.activations import require_activation
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launches import gates as launches
from drivers.cuda.storage import flagged, storage_of
from drivers.types import Activation


class CudaGates(CudaOps):
    """`drivers.primitives.arithmetic.Gates`, and the gate of `gated_linear`."""

    def split_gate_value(
        self, x: Array, *, out: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array]:
        op = "split_gate_value"
        shape = shapes.halves(op, x.shape)
        storage_of(op, x)
        first, second = self._outs(op, out, (shape, shape), x.dtype)
        build = storage_of(op, first, second, x)
        if x.size:
            cols = shape[-1]
            rows = x.size // (2 * cols)
            launch = launches.split_halves(rows=rows, cols=cols)
            sizes = (np.int64(rows), np.int64(cols))
            self._launch("gates", build, launch, *flagged(first, second, x), *sizes)
        return first, second

    def geglu(self, value: Array, gate: Array, *, out: Array | None = None) -> Array:
        return self._gate_pair("geglu", value, gate, "gelu", out)

    def swiglu(self, value: Array, gate: Array, *, out: Array | None = None) -> Array:
        return self._gate_pair("swiglu", value, gate, "silu", out)

    def fused_split_geglu(self, x: Array, *, out: Array | None = None) -> Array:
        return self._gate_rows(x, None, "gelu", out, op="fused_split_geglu")

    def fused_split_gate(self, x: Array, act: Activation, *, out: Array | None = None) -> Array:
        return self._gate_rows(x, None, act, out, op="fused_split_gate")

    def _gate_pair(
        self, op: str, value: Array, gate: Array, act: Activation, out: Array | None
    ) -> Array:
        """act of the one that `op` activates, times the other; all of one shape."""
        shapes.require(op, "gate", gate.shape, value.shape)
        storage_of(op, value, gate)
        out = self._out(op, out, value.shape, value.dtype)
        first, second = (gate, value) if op == "swiglu" else (value, gate)
        self._gate(op, out, first, second, None, act, rows=1, cols=out.size, stride=out.size)
        return out

    def _gate_rows(
        self,
        x: Array,
        bias: Array | None,
        act: Activation,
        out: Array | None = None,
        *,
        op: str = "gated_linear",
    ) -> Array:
        """act(first half) * second half of x + bias: (rows, 2 F) and (2 F,) -> (rows, F).

        Raises DriverError for an unknown activation, ShapeError and DtypeError for what does not
        fit.
        """
        require_activation(op, act)
        shape = shapes.halves(op, x.shape)
        if bias is not None:
            shapes.require(op, "bias", bias.shape, x.shape[-1:])
        storage_of(op, x, *(() if bias is None else (bias,)))
        out = self._out(op, out, shape, x.dtype)
        cols, values = shape[-1], x.reshape(-1)
        rows = out.size // max(1, cols)
        halves = (values, values[cols:])
        self._gate(op, out, *halves, bias, act, rows=rows, cols=cols, stride=2 * cols)
        return out

    def _gate(
        self,
        op: str,
        out: Array,
        first: Array,
        second: Array,
        bias: Array | None,
        act: Activation,
        *,
        rows: int,
        cols: int,
        stride: int,
    ) -> None:
        """out = act(first + bias) * (second + bias), by rows that start `stride` values apart."""
        build = storage_of(op, out, first, second, bias)
        if out.size:
            launch = launches.gate(act=act, rows=rows, cols=cols)
            sizes = [np.int64(size) for size in (rows, cols, stride)]
            self._launch("gates", build, launch, *flagged(out, first, second, bias), *sizes)
