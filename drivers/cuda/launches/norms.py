"""Launches of kernels/norms.cu."""

from __future__ import annotations

import numpy as np

from drivers.cuda.launch import Launch
from drivers.cuda.launches.norm_row import HELD, WARPS, held, warp_a_row

WIDE = {name: 1 << bit for bit, name in enumerate(("OUT", "X", "RESIDUAL", "WEIGHT", "BIAS"))}
"""The bits of `wide`: the tensor is float32 though the kernels are built for another storage."""

PARTS = ("vectors", "norm_row")
KERNELS = ("norm_plain", *(f"norm_held_{count}" for count in HELD), "l2_normalize")
DEFINES = (f"WARPS={WARPS}", *(f"WIDE_{name}={bit}" for name, bit in WIDE.items()))


def norm(op: str, *, rows: int, cols: int, storage: np.dtype[np.generic], wide: int) -> Launch:
    """The launch over (rows, cols): held in registers where the width and the dtypes allow it.

    Raises ShapeError for more rows than a grid holds.
    """
    weights = WIDE["WEIGHT"] | WIDE["BIAS"]
    count = held(cols, storage) if wide in (0, weights) else None
    kernel = "norm_plain" if count is None else f"norm_held_{count}"
    return warp_a_row(kernel, op, rows)


def l2_normalize(op: str, *, rows: int) -> Launch:
    """The launch over rows of any width. Raises ShapeError for more than a grid holds."""
    return warp_a_row("l2_normalize", op, rows)
