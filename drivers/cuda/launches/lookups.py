"""Launches of kernels/lookups.cu."""

from __future__ import annotations

import numpy as np

from drivers.cuda.launch import LANES, Launch
from drivers.cuda.launches.norm_row import HELD, WARPS, held, warp_a_row

TABLES = 3  # that one launch sums: as many as a batch has ids
CHECK_WARPS = 8  # of the one block that looks for ids outside a table

TABLE_BITS = tuple(f"TABLE{number}" for number in range(TABLES))
WIDE = {name: 1 << bit for bit, name in enumerate((*TABLE_BITS, "OUT", "ADDEND", "WEIGHT", "BIAS"))}
"""The bits of `wide`: the tensor is float32 though the kernels are built for another storage."""

PARTS = ("vectors", "norm_row")
KERNELS = ("embed_plain", *(f"embed_held_{count}" for count in HELD), "first_outside")
DEFINES = (
    f"WARPS={WARPS}",
    f"CHECK_WARPS={CHECK_WARPS}",
    f"TABLES={TABLES}",
    *(f"WIDE_{name}={bit}" for name, bit in WIDE.items()),
)


def embed(op: str, *, rows: int, cols: int, storage: np.dtype[np.generic], wide: int) -> Launch:
    """The launch over (rows, cols): held in registers where the width and the dtypes allow it.

    Raises ShapeError for more rows than a grid holds.
    """
    weights = WIDE["WEIGHT"] | WIDE["BIAS"]
    count = held(cols, storage) if wide in (0, weights) else None
    kernel = "embed_plain" if count is None else f"embed_held_{count}"
    return warp_a_row(kernel, op, rows)


def first_outside() -> Launch:
    """The launch over any number of ids: one block."""
    return Launch(
        kernel="first_outside",
        grid=(1, 1, 1),
        block=(LANES * CHECK_WARPS, 1, 1),
        shared_bytes=8 * CHECK_WARPS,
    )
