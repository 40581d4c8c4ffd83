"""Launches of kernels/pooling.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from drivers.cuda.launch import GRID_X_LIMIT, LANES, Launch, blocks_for, require_blocks
from drivers.cuda.launches.norm_row import VECTOR_BYTES
from drivers.types import PoolMode

WARPS = 8  # of a block: they take turns with the tokens
MODES: tuple[PoolMode, ...] = get_args(PoolMode)
MODE_BITS = 4  # of a mode's number
MODES_A_LAUNCH = 64 // MODE_BITS

PARTS = ("vectors",)
KERNELS = ("pool", "pool_padded")
DEFINES = (
    f"WARPS={WARPS}",
    f"MODE_BITS={MODE_BITS}",
    *(f"MODE_{mode.upper()}={number}" for number, mode in enumerate(MODES)),
)


def packed_modes(modes: Sequence[PoolMode]) -> int:
    """At most MODES_A_LAUNCH modes by number, MODE_BITS each, the first in the lowest bits."""
    return sum(MODES.index(mode) << MODE_BITS * place for place, mode in enumerate(modes))


def pool(
    op: str, *, sequences: int, width: int, storage: np.dtype[np.generic], modes: int = 1
) -> Launch:
    """The launch over B sequences of tokens (., width), for so many modes.

    Raises ShapeError for more sequences than a grid holds.
    """
    return _launch("pool", op, sequences, width, storage, modes)


def pool_padded(op: str, *, sequences: int, width: int, storage: np.dtype[np.generic]) -> Launch:
    """The launch over a padded batch (B, S, width).

    Raises ShapeError for more sequences than a grid holds.
    """
    return _launch("pool_padded", op, sequences, width, storage, 1)


def _launch(
    kernel: str, op: str, sequences: int, width: int, storage: np.dtype[np.generic], modes: int
) -> Launch:
    columns = LANES * VECTOR_BYTES // storage.itemsize  # of a block
    blocks = sequences * blocks_for(width, columns)
    require_blocks(op, f"blocks of {columns} columns", blocks, GRID_X_LIMIT)
    return Launch(
        kernel=kernel,
        grid=(blocks, modes, 1),
        block=(LANES * WARPS, 1, 1),
        shared_bytes=4 * WARPS * (columns + 1),
    )
