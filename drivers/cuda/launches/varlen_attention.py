"""Launches of kernels/varlen_attention.cu."""

from __future__ import annotations

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks
from drivers.errors import ShapeError

WARPS = 4
QUERY_ROWS = 16  # of a block, a multiple of WARPS
KEY_ROWS = LANES  # of a tile
HEAD_WIDTHS = (32, 64, 96, 128, 256)
KERNELS = tuple(f"varlen_attention_{width}" for width in HEAD_WIDTHS)
DEFINES = (f"QUERY_ROWS={QUERY_ROWS}", f"WARPS={WARPS}")


def head_width(head_dim: int) -> int:
    """The narrowest build that holds a head. Raises ShapeError above the widest."""
    for width in HEAD_WIDTHS:
        if 1 <= head_dim <= width:
            return width
    raise ShapeError(f"varlen_attention: head_dim is {head_dim}, wanted 1 to {HEAD_WIDTHS[-1]}")


def varlen_attention(*, batch: int, max_seq: int, num_heads: int, head_dim: int) -> Launch:
    """The launch over B sequences, the longest of `max_seq` tokens.

    Raises ShapeError for a head that is too wide and for more query tiles than a grid holds.
    """
    width = head_width(head_dim)
    blocks = blocks_for(max_seq, QUERY_ROWS) * num_heads * batch
    require_blocks("varlen_attention", "query tiles", blocks, GRID_X_LIMIT)
    queries = QUERY_ROWS * width
    keys = KEY_ROWS * (width + 1)
    values = KEY_ROWS * width
    weights = QUERY_ROWS * KEY_ROWS
    return Launch(
        kernel=f"varlen_attention_{width}",
        grid=(blocks, 1, 1),
        block=(LANES * WARPS, 1, 1),
        shared_bytes=4 * (queries + keys + values + weights),
    )
