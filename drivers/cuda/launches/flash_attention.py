"""Launches of kernels/flash_attention.cu."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks
from drivers.dtypes import BFLOAT16, FLOAT16
from drivers.errors import ShapeError

PARTS = ("rotation", "tensor_cores")
DTYPES = (FLOAT16, BFLOAT16)
ROWS_PER_WARP = 16  # query rows


@dataclass(frozen=True)
class Tile:
    """A block's work: its warps, the keys of a tile, and how many blocks share a multiprocessor.

    The last bounds the registers of a thread; no build spills any.
    """

    warps: int
    keys: int
    blocks: int


TILES = {
    32: Tile(warps=8, keys=64, blocks=2),
    64: Tile(warps=4, keys=64, blocks=3),
    96: Tile(warps=4, keys=64, blocks=2),
    128: Tile(warps=4, keys=64, blocks=2),
    256: Tile(warps=4, keys=16, blocks=2),
}
"""By head size."""

HEAD_DIMS = tuple(TILES)
ROTATING_HEAD_DIMS = (32, 64, 96, 128)  # a head of 256 leaves no registers for it
KERNELS = (
    *(f"flash_attention_{head_dim}" for head_dim in HEAD_DIMS),
    *(f"rotating_attention_{head_dim}" for head_dim in ROTATING_HEAD_DIMS),
)
DEFINES = tuple(
    define
    for head_dim, tile in TILES.items()
    for define in (
        f"WARPS_{head_dim}={tile.warps}",
        f"KEYS_{head_dim}={tile.keys}",
        f"BLOCKS_{head_dim}={tile.blocks}",
    )
)


TIMES_ROTATED = 8
"""Query tiles that read the same key, at most, where each rotates it anew.

By count, not measured: that takes some 6 instructions a value, 0.2 ps on an H200. A launch that
rotates first reads and writes q and k, 8 bytes for a value of each, 1.9 ps: as long as 9 tiles.
"""


def rotates(
    *, max_seq: int, head_dim: int, pairs: int, window_left: int | None, window_right: int | None
) -> bool:
    """Whether the attention is to rotate q and k itself; the answer has the same bits if not.

    It does where heads are rotated whole and sequences are short or the window is narrow.
    """
    if head_dim not in ROTATING_HEAD_DIMS or 2 * pairs != head_dim:
        return False
    rows = ROWS_PER_WARP * TILES[head_dim].warps
    tiles = blocks_for(max_seq, rows)
    if window_left is not None and window_right is not None:
        tiles = min(tiles, 1 + blocks_for(window_left + window_right, rows))
    return tiles <= TIMES_ROTATED


def flash_attention(
    *, batch: int, max_seq: int, num_heads: int, head_dim: int, rotating: bool = False
) -> Launch:
    """The launch over B sequences, the longest of `max_seq` tokens.

    rotating: with q and k rotated on their way in, for heads of ROTATING_HEAD_DIMS. Raises
    ShapeError for another head size and for more query tiles than a grid holds.
    """
    head_dims = ROTATING_HEAD_DIMS if rotating else HEAD_DIMS
    if head_dim not in head_dims:
        have = ", ".join(map(str, head_dims))
        raise ShapeError(f"flash_attention: head_dim is {head_dim}, wanted one of {have}")
    tile = TILES[head_dim]
    blocks = blocks_for(max_seq, ROWS_PER_WARP * tile.warps) * num_heads * batch
    require_blocks("flash_attention", "query tiles", blocks, GRID_X_LIMIT)
    return Launch(
        kernel=f"{'rotating' if rotating else 'flash'}_attention_{head_dim}",
        grid=(blocks, 1, 1),
        block=(LANES * tile.warps, 1, 1),
        shared_bytes=2 * 2 * tile.keys * (head_dim + 8) * 2,
    )
