"""Tensors without values, and the tally they are counted on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from drivers import shapes
from drivers.forward_ops import ForwardOps


@dataclass
class Tally:
    """What a NullDriver counted so far."""

    calls_total: Counter[str] = field(default_factory=Counter)
    flops_total: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0


class NullTensor:
    """A shape and a dtype; its bytes are on the driver's tally while it lives."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, tally: Tally) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._tally = tally
        tally.live_bytes += self.nbytes
        tally.peak_bytes = max(tally.peak_bytes, tally.live_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes that a dense tensor of this shape and dtype holds."""
        return prod(self.shape) * self.dtype.itemsize

    def __del__(self) -> None:
        self._tally.live_bytes -= self.nbytes


class NullOps(ForwardOps[NullTensor]):
    """Base of the themes: what each call counts, and the shape of what it gives."""

    def __init__(self) -> None:
        self.tally = Tally()

    def _new(
        self, op: str, out: NullTensor | None, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NullTensor:
        """Count the call; `out`, checked, or a new tensor."""
        self.tally.calls_total[op] += 1
        if out is None:
            return NullTensor(shape, dtype, self.tally)
        shapes.require(op, "out", out.shape, shape)
        return out

    def _several(
        self,
        op: str,
        out: tuple[NullTensor, ...] | None,
        wanted: tuple[tuple[int, ...], ...],
        dtype: np.dtype[Any],
    ) -> list[NullTensor]:
        """Count the call; each of `out`, checked, or new tensors."""
        self.tally.calls_total[op] += 1
        given = shapes.outs(op, out, len(wanted))
        for tensor, shape in zip(given, wanted):
            if tensor is not None:
                shapes.require(op, "out", tensor.shape, shape)
        return [
            NullTensor(shape, dtype, self.tally) if tensor is None else tensor
            for tensor, shape in zip(given, wanted)
        ]

    def _row_wise(
        self, op: str, x: NullTensor, out: NullTensor | None, **vectors: NullTensor | None
    ) -> NullTensor:
        """An operation on rows with vectors along the last dimension."""
        _, cols = shapes.rows_cols(op, x)
        for name, vector in vectors.items():
            if vector is not None:
                shapes.require(op, name, vector.shape, (cols,))
        return self._new(op, out, x.shape, x.dtype)
