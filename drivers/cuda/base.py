"""What the themes of the CUDA driver share: launches, checks, and where results are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from drivers import dtypes, shapes
from drivers.cuda.device import Array, Device
from drivers.cuda.launch import STORAGE, Launch
from drivers.errors import DtypeError, ShapeError
from drivers.forward_ops import ForwardOps


class CudaOps(ForwardOps[Array]):
    """Base of the themes. Tensors are contiguous arrays on the device.

    `launches_total` counts launches.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.launches_total = 0

    def _launch(self, theme: str, dtype: np.dtype[Any], launch: Launch, *arguments: Any) -> None:
        """A launch of kernels/THEME.cu, built for that storage type (`Device.launch`)."""
        self.launches_total += 1
        self.device.launch(theme, np.dtype(dtype), launch, arguments)

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.device.new(shape, np.dtype(dtype))

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
            return self._new(shape, dtype)
        shapes.require(op, "out", out.shape, shape)
        if only is not None:
            dtypes.require(op, "out", out, only)
        if out.dtype not in STORAGE:
            have = ", ".join(str(known) for known in STORAGE)
            raise DtypeError(f"{op}: out has dtype {out.dtype}, wanted one of {have}")
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
