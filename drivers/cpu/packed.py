"""Weights of linear layers in the layout that the float32 kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from drivers.cpu.memory import aligned_empty
from drivers.dtypes import FLOAT32

if TYPE_CHECKING:
    from rayvec_native import Kernels

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class PackedLinear:
    """A weight (out, in) float32 in panels of columns: (panels, in, 2 * lanes), flat.

    gated: whether the two vectors of a panel hold columns of the first and of the second half.
    """

    shape: tuple[int, int]
    panels: F32
    gated: bool
    lanes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.panels.dtype

    def unpacked(self) -> F32:
        """The weight (out, in), for operations that no kernel does."""
        rows, depth = self.shape
        if not rows * depth:
            return np.empty(self.shape, np.float32)
        by_panel = self.panels.reshape(-1, depth, 2, self.lanes).transpose(2, 0, 3, 1)
        if self.gated:  # (half, panel, lane, in)
            halves = by_panel.reshape(2, -1, depth)[:, : rows // 2]
            return np.ascontiguousarray(halves).reshape(rows, depth)
        return np.ascontiguousarray(by_panel.swapaxes(0, 1)).reshape(-1, depth)[:rows]


def pack_linear(kernels: Kernels, weight: F32, *, gated: bool) -> PackedLinear:
    """weight: (out, in), contiguous; with `gated` an even number of rows."""
    rows, depth = weight.shape
    panels = aligned_empty((kernels.packed_size(rows, depth, gated),), FLOAT32)
    kernels.pack_linear(weight, gated, panels)
    return PackedLinear((rows, depth), panels, gated, kernels.lanes)
