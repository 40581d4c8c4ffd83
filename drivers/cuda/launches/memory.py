"""Launches of kernels/memory.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from drivers.cuda.launch import STORAGE, Launch
from drivers.cuda.launches.chunks import DEFINES, chunks, threads

__all__ = ["DEFINES", "KERNELS", "cast", "copy_bytes", "fill_zeros"]

BYTES_PER_THREAD = 16
KERNELS = (
    "fill_zeros",
    "copy_bytes",
    *(f"cast_{stored}_{asked}" for stored in STORAGE for asked in STORAGE if stored != asked),
)


def fill_zeros(*, size_bytes: int) -> Launch:
    """Zeros in so many bytes."""
    return threads("fill_zeros", -(-size_bytes // BYTES_PER_THREAD))


def copy_bytes(*, size_bytes: int) -> Launch:
    """A copy of so many bytes."""
    return threads("copy_bytes", -(-size_bytes // BYTES_PER_THREAD))


def cast(*, stored: np.dtype[Any], asked: np.dtype[Any], count: int) -> Launch:
    """So many values from one storage type to another."""
    return chunks(f"cast_{stored}_{asked}", 1, count)
