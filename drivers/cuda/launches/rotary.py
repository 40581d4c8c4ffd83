"""Launches of kernels/rotary.cu."""

from __future__ import annotations

from drivers.cuda.launch import GRID_X_LIMIT, Launch, blocks_for, require_blocks
from drivers.errors import ShapeError

THREADS = 256
PACK = 4  # neighbours in one load, where they divide a head and its pairs
MIXES = ("ss", "sf", "fs")
KERNELS = tuple(f"apply_rope_{mix}_{pack}" for mix in MIXES for pack in (1, PACK))
DEFINES = (f"THREADS={THREADS}",)
SLOTS_LIMIT = 2**31 - THREADS  # of a group: they are counted in 32 bits


def apply_rope(
    *, mix: str, groups: int, seq: int, head_dim: int, pairs: int, passing: int
) -> Launch:
    """Heads (G, S, D) of which `pairs` pairs turn and `passing` dimensions are copied.

    mix: the letters of out and x. Raises ShapeError beyond a grid.
    """
    pack = PACK if head_dim % PACK == 0 and pairs % PACK == 0 else 1
    slots = seq * (pairs + passing) // pack
    if slots > SLOTS_LIMIT:
        raise ShapeError(f"apply_rope: heads of {slots} values, wanted at most {SLOTS_LIMIT}")
    blocks = groups * blocks_for(slots, THREADS)
    require_blocks("apply_rope", "blocks of pairs", blocks, GRID_X_LIMIT)
    return Launch(f"apply_rope_{mix}_{pack}", grid=(blocks, 1, 1), block=(THREADS, 1, 1))
