"""Launches of kernels/heads.cu."""

from __future__ import annotations

from drivers.cuda.launch import GRID_X_LIMIT, Launch, require_blocks

PARTS = ("rotation",)
THREADS = 128
GROUPS = (2, 4, 8, 16)  # lanes of a head that is read in pieces of 16 bytes
KERNELS = ("norm_and_rotate_any", *(f"norm_and_rotate_{group}" for group in GROUPS))
DEFINES = (f"THREADS={THREADS}",)


def norm_and_rotate(*, tokens: int, head_dim: int, pairs: int) -> Launch:
    """The launch over T tokens, `pairs` of each head rotated.

    A head that is a multiple of 16 wide and rotated whole or not at all takes the smallest group of
    lanes that holds it in pieces of 16 values a lane; any other takes a warp. Raises ShapeError for
    more tokens than a grid holds.
    """
    require_blocks("norm_and_rotate", "tokens", tokens, GRID_X_LIMIT)
    holding = [group for group in GROUPS if 16 * group >= head_dim]
    in_pieces = head_dim % 16 == 0 and 2 * pairs in (0, head_dim) and holding
    return Launch(
        kernel=f"norm_and_rotate_{holding[0] if in_pieces else 'any'}",
        grid=(max(1, tokens), 1, 1),
        block=(THREADS, 1, 1),
    )
