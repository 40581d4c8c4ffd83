"""Launches of kernels/banded.cu."""

from __future__ import annotations

from itertools import product

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks

WARPS = 4
QUERY_ROWS = 32  # of a block, a multiple of WARPS
KEY_ROWS = LANES  # of a tile
DIMS = 64  # of a head at a time, a multiple of 32
MIXES = tuple("".join(mix) for mix in product("sf", repeat=3) if "s" in mix)
KERNELS = tuple(f"banded_{op}_{mix}" for mix in MIXES for op in ("qk", "sv"))
DEFINES = (f"WARPS={WARPS}", f"QUERY_ROWS={QUERY_ROWS}", f"DIMS={DIMS}")


def banded_qk(*, mix: str, groups: int, seq: int) -> Launch:
    """Scores (G, S, W). mix: the letters of out, q and k. Raises ShapeError beyond a grid."""
    return Launch(
        kernel=f"banded_qk_{mix}",
        grid=(_tiles("banded_qk", groups, seq), 1, 1),
        block=(LANES * WARPS, 1, 1),
        shared_bytes=4 * (QUERY_ROWS * DIMS + KEY_ROWS * (DIMS + 1)),
    )


def banded_sv(*, mix: str, groups: int, seq: int, head_dim: int) -> Launch:
    """Heads (G, S, D). mix: the letters of out, weights, v. Raises ShapeError beyond a grid."""
    parts = blocks_for(head_dim, DIMS)
    require_blocks("banded_sv", f"parts of {DIMS} dimensions", parts)
    return Launch(
        kernel=f"banded_sv_{mix}",
        grid=(_tiles("banded_sv", groups, seq), parts, 1),
        block=(LANES * WARPS, 1, 1),
        shared_bytes=4 * (KEY_ROWS * DIMS + QUERY_ROWS * KEY_ROWS),
    )


def _tiles(op: str, groups: int, seq: int) -> int:
    """Blocks of QUERY_ROWS queries of each group."""
    tiles = groups * blocks_for(seq, QUERY_ROWS)
    require_blocks(op, "tiles of queries", tiles, GRID_X_LIMIT)
    return tiles
