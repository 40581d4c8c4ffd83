"""What the themes of the NumPy driver share: checks, and where results are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers import dtypes, shapes
from drivers.errors import DtypeError, ShapeError
from drivers.forward_ops import ForwardOps
from drivers.numpy.pool import MemoryPool

Array = NDArray[Any]


def float32(x: Array) -> NDArray[np.float32]:
    """The values in float32, without a copy where they are float32 already."""
    return x.astype(np.float32, copy=False)


class NumpyOps(ForwardOps[Array]):
    """Base of the themes. Tensors are NumPy arrays."""

    def __init__(self) -> None:
        self.pool_memory = MemoryPool()

    def _out(
        self,
        op: str,
        out: Array | None,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        only: np.dtype[Any] | None = None,
    ) -> Array:
        """`out`, checked, or a new array. only: the one dtype that `out` may have."""
        if out is None:
            return self.pool_memory.new(shape, dtype)
        shapes.require(op, "out", out.shape, shape)
        if only is not None:
            dtypes.require(op, "out", out, only)
        if out.dtype not in (dtypes.FLOAT32, dtypes.FLOAT16):
            raise DtypeError(f"{op}: out has dtype {out.dtype}, wanted float32 or float16")
        if not out.flags.c_contiguous:
            raise ShapeError(f"{op}: out is not contiguous")
        return out

    def _outs(
        self,
        op: str,
        outs: tuple[Array, ...] | None,
        wanted: tuple[tuple[int, ...], ...],
        dtype: np.dtype[Any],
    ) -> list[Array]:
        """Several results: each of `outs`, checked, or new arrays of the wanted shapes."""
        given = shapes.outs(op, outs, len(wanted))
        return [self._out(op, out, shape, dtype) for out, shape in zip(given, wanted)]
