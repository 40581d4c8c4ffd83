"""Launch arithmetic of the CUDA kernels: which kernel, how it is built, grid, block, shared memory.

Pure functions; the kernels' sources say the same in their comments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drivers.errors import DtypeError, ShapeError

KERNELS = Path(__file__).parent / "kernels"

LANES = 32  # threads of a warp
WARPS = 4
QUERY_ROWS = 16  # of a block of varlen_attention, a multiple of WARPS
KEY_ROWS = LANES  # of a tile of varlen_attention
HEAD_WIDTHS = (32, 64, 96, 128)
STORAGE = {np.dtype(np.float32): "float", np.dtype(np.float16): "__half"}

GRID_LIMIT = 65535  # blocks along y, and along z
SHARED_BYTES_LIMIT = 48 * 1024  # what a block has without asking for more


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel, blocks and threads by axis, and the shared memory of a block."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


def build_defines(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """What a kernel source is built with for this storage type, as NAME=VALUE.

    Raises DtypeError for a storage type that the kernels lack.
    """
    if dtype not in STORAGE:
        raise DtypeError(f"cuda kernels: no storage type {dtype}, only float32 and float16")
    return (f"STORAGE={STORAGE[dtype]}", f"QUERY_ROWS={QUERY_ROWS}", f"WARPS={WARPS}")


def head_width(head_dim: int) -> int:
    """The narrowest build of varlen_attention that holds a head. Raises ShapeError above 128."""
    for width in HEAD_WIDTHS:
        if 1 <= head_dim <= width:
            return width
    raise ShapeError(f"varlen_attention: head_dim is {head_dim}, wanted 1 to {HEAD_WIDTHS[-1]}")


def varlen_attention(*, batch: int, max_seq: int, num_heads: int, head_dim: int) -> Launch:
    """The launch over B sequences, the longest of `max_seq` tokens.

    Raises ShapeError for a head that is too wide and for more sequences or heads than a grid holds.
    """
    width = head_width(head_dim)
    for name, blocks in (("heads", num_heads), ("sequences", batch)):
        if blocks > GRID_LIMIT:
            raise ShapeError(f"varlen_attention: {blocks} {name}, wanted at most {GRID_LIMIT}")
    queries = QUERY_ROWS * width
    keys = KEY_ROWS * (width + 1)
    values = KEY_ROWS * width
    weights = QUERY_ROWS * KEY_ROWS
    return Launch(
        kernel=f"varlen_attention_{width}",
        grid=(-(-max_seq // QUERY_ROWS), num_heads, batch),
        block=(LANES * WARPS, 1, 1),
        shared_bytes=4 * (queries + keys + values + weights),
    )
