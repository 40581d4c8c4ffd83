"""Launches of kernels/elementwise.cu."""

from __future__ import annotations

from drivers.cuda.activations import ACTIVATION_NUMBERS
from drivers.cuda.launch import Launch
from drivers.cuda.launches.chunks import DEFINES, chunks
from drivers.types import Activation

__all__ = ["DEFINES", "KERNELS", "elementwise"]

KERNELS = tuple(f"elementwise_{act or 'sum'}" for act in ACTIVATION_NUMBERS)


def elementwise(*, act: Activation | None, rows: int, cols: int) -> Launch:
    """act(x + bias) + residual over (rows, cols)."""
    return chunks(f"elementwise_{act or 'sum'}", rows, cols)
