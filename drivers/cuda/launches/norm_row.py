"""How kernels/norm_row.cuh holds rows: which build takes a row, and a grid of a warp a row."""

from __future__ import annotations

import numpy as np

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks

WARPS = 4  # of a block, a row each
VECTOR_BYTES = 16
HELD = (1, 2, 3, 4, 6, 8, 12, 16)
"""Pieces of VECTOR_BYTES that a lane holds in registers, a build each."""


def held(cols: int, storage: np.dtype[np.generic]) -> int | None:
    """The narrowest build that holds a row; None where it has no whole pieces, or too many."""
    pieces, over = divmod(cols * storage.itemsize, VECTOR_BYTES)
    if over:
        return None
    return next((count for count in HELD if pieces <= count * LANES), None)


def warp_a_row(kernel: str, op: str, rows: int) -> Launch:
    """The launch over rows. Raises ShapeError for more rows than a grid holds."""
    blocks = blocks_for(rows, WARPS)
    require_blocks(op, f"blocks of {WARPS} rows", blocks, GRID_X_LIMIT)
    return Launch(kernel=kernel, grid=(blocks, 1, 1), block=(LANES * WARPS, 1, 1))
