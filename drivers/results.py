"""Where results are stored, for drivers whose tensors are arrays of NumPy's interface."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from drivers import dtypes, shapes
from drivers.errors import DtypeError, ShapeError
from drivers.forward_ops import ForwardOps
from drivers.types import T


class Results(ForwardOps[T]):
    """Base of drivers that write to `out` where one is given, and to new memory where none is."""

    _storage: ClassVar[tuple[np.dtype[Any], ...]]  # what `out` may be stored in
    _storage_names: ClassVar[str]  # the same in words

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> T:
        """A new array of undefined values."""
        raise NotImplementedError

    def _out(
        self,
        op: str,
        out: T | None,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        only: np.dtype[Any] | None = None,
    ) -> T:
        """`out`, checked, or a new array. only: the one dtype that `out` may have."""
        if out is None:
            return self._empty(shape, dtype)
        shapes.require(op, "out", out.shape, shape)
        if only is not None:
            dtypes.require(op, "out", out, only)
        if out.dtype not in self._storage:
            raise DtypeError(f"{op}: out has dtype {out.dtype}, wanted {self._storage_names}")
        array: Any = out
        if not array.flags.c_contiguous:
            raise ShapeError(f"{op}: out is not contiguous")
        return out

    def _outs(
        self,
        op: str,
        outs: tuple[T, ...] | None,
        wanted: tuple[tuple[int, ...], ...],
        dtype: np.dtype[Any],
    ) -> list[T]:
        """Several results: each of `outs`, checked, or new arrays of the wanted shapes."""
        given = shapes.outs(op, outs, len(wanted))
        return [self._out(op, out, shape, dtype) for out, shape in zip(given, wanted)]
