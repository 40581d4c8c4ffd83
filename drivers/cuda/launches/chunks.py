"""Launches of kernels in which a thread takes CHUNK values of a row, or 16 bytes."""

from __future__ import annotations

from drivers.cuda.launch import GRID_X_LIMIT, Launch, blocks_for, require_blocks

THREADS = 256  # of a block
CHUNK = 8  # values that a thread takes; kernels/prelude.cu has the same number
DEFINES = (f"THREADS={THREADS}",)


def threads(kernel: str, count: int) -> Launch:
    """A launch of at least `count` threads. Raises ShapeError for more than a grid holds."""
    blocks = blocks_for(count, THREADS)
    require_blocks(kernel, f"blocks of {THREADS} threads", blocks, GRID_X_LIMIT)
    return Launch(kernel, grid=(blocks, 1, 1), block=(THREADS, 1, 1))


def chunks(kernel: str, rows: int, cols: int) -> Launch:
    """A thread for each chunk of (rows, cols) values; a chunk never crosses a row's end.

    Raises ShapeError for more than a grid holds.
    """
    return threads(kernel, rows * -(-cols // CHUNK))
