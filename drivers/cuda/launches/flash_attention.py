"""Launches of kernels/flash_attention.cu."""

from __future__ import annotations

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks
from drivers.dtypes import BFLOAT16, FLOAT16
from drivers.errors import ShapeError

PRELUDES = ("tensor_cores",)
DTYPES = (FLOAT16, BFLOAT16)
ROWS_PER_WARP = 16  # query rows
TILES = {32: (8, 64), 64: (8, 64), 96: (4, 64), 128: (4, 64), 256: (4, 32)}
"""Warps of a block and keys of a tile, by head size: what registers and shared memory hold."""

HEAD_DIMS = tuple(TILES)
KERNELS = tuple(f"flash_attention_{head_dim}" for head_dim in HEAD_DIMS)
DEFINES = tuple(
    define
    for head_dim, (warps, keys) in TILES.items()
    for define in (f"WARPS_{head_dim}={warps}", f"KEYS_{head_dim}={keys}")
)


def flash_attention(*, batch: int, max_seq: int, num_heads: int, head_dim: int) -> Launch:
    """The launch over B sequences, the longest of `max_seq` tokens.

    Raises ShapeError for another head size and for more query tiles than a grid holds.
    """
    if head_dim not in TILES:
        have = ", ".join(map(str, HEAD_DIMS))
        raise ShapeError(f"flash_attention: head_dim is {head_dim}, wanted one of {have}")
    warps, keys = TILES[head_dim]
    blocks = blocks_for(max_seq, ROWS_PER_WARP * warps) * num_heads * batch
    require_blocks("flash_attention", "query tiles", blocks, GRID_X_LIMIT)
    return Launch(
        kernel=f"flash_attention_{head_dim}",
        grid=(blocks, 1, 1),
        block=(LANES * warps, 1, 1),
        shared_bytes=2 * 2 * keys * (head_dim + 8) * 2,
    )
