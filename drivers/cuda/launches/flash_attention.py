"""Launches of kernels/flash_attention.cu."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks
from drivers.dtypes import BFLOAT16, FLOAT16
from drivers.errors import ShapeError

PARTS = ("tensor_cores",)
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
KERNELS = tuple(f"flash_attention_{head_dim}" for head_dim in HEAD_DIMS)
DEFINES = tuple(
    define
    for head_dim, tile in TILES.items()
    for define in (
        f"WARPS_{head_dim}={tile.warps}",
        f"KEYS_{head_dim}={tile.keys}",
        f"BLOCKS_{head_dim}={tile.blocks}",
    )
)


def flash_attention(*, batch: int, max_seq: int, num_heads: int, head_dim: int) -> Launch:
    """The launch over B sequences, the longest of `max_seq` tokens.

    Raises ShapeError for another head size and for more query tiles than a grid holds.
    """
    if head_dim not in TILES:
        have = ", ".join(map(str, HEAD_DIMS))
        raise ShapeError(f"flash_attention: head_dim is {head_dim}, wanted one of {have}")
    tile = TILES[head_dim]
    blocks = blocks_for(max_seq, ROWS_PER_WARP * tile.warps) * num_heads * batch
    require_blocks("flash_attention", "query tiles", blocks, GRID_X_LIMIT)
    return Launch(
        kernel=f"flash_attention_{head_dim}",
        grid=(blocks, 1, 1),
        block=(LANES * tile.warps, 1, 1),
        shared_bytes=2 * 2 * tile.keys * (head_dim + 8) * 2,
    )
