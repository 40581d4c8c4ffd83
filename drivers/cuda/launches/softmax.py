"""Launches of kernels/softmax.cu."""

from __future__ import annotations

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks
from drivers.types import MASKED_AT_OR_BELOW

WARPS = 8  # of a block, a row each
PACK = 4  # neighbours in one load, where they divide a row
MIXES = ("ss", "sf", "fs")
MASKED_WIDTHS = (128, 512)  # rows that stay in registers
BANDED_WIDTHS = (160,)  # holds the band of 129 that equals the window 128
KERNELS = (
    *(f"masked_softmax_{m}_{w}_{p}" for m in MIXES for w in (*MASKED_WIDTHS, 0) for p in (1, PACK)),
    *(f"banded_softmax_{m}_{w}" for m in MIXES for w in (*BANDED_WIDTHS, 0)),
)
DEFINES = (f"WARPS={WARPS}", f"MASKED_AT_OR_BELOW={MASKED_AT_OR_BELOW}f")


def masked_softmax(*, mix: str, groups: int, seq: int) -> Launch:
    """Rows of (G, S, S). mix: the letters of out and scores. Raises ShapeError beyond a grid."""
    pack = PACK if seq % PACK == 0 else 1
    kernel = f"masked_softmax_{mix}_{_width(seq, MASKED_WIDTHS)}_{pack}"
    return _rows("masked softmax", kernel, groups, seq)


def banded_softmax(*, mix: str, groups: int, seq: int, window: int) -> Launch:
    """Rows of (G, S, W). mix: the letters of out and scores. Raises ShapeError beyond a grid."""
    kernel = f"banded_softmax_{mix}_{_width(window, BANDED_WIDTHS)}"
    return _rows("banded softmax", kernel, groups, seq)


def _width(columns: int, widths: tuple[int, ...]) -> int:
    """The narrowest build that keeps a row, 0 where none does."""
    return next((width for width in widths if columns <= width), 0)


def _rows(op: str, kernel: str, groups: int, rows: int) -> Launch:
    """A warp for each of `rows` rows of each group."""
    blocks = groups * blocks_for(rows, WARPS)
    require_blocks(op, "blocks of rows", blocks, GRID_X_LIMIT)
    return Launch(kernel, grid=(blocks, 1, 1), block=(LANES * WARPS, 1, 1))
