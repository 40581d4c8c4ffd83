"""Launches of kernels/gates.cu."""

from __future__ import annotations

from drivers.cuda.activations import ACTIVATION_NUMBERS
from drivers.cuda.launch import Launch
from drivers.cuda.launches.chunks import DEFINES, chunks
from drivers.types import Activation

__all__ = ["DEFINES", "KERNELS", "gate", "split_halves"]

KERNELS = (*(f"gate_{act}" for act in ACTIVATION_NUMBERS if act), "split_halves")


def gate(*, act: Activation, rows: int, cols: int) -> Launch:
    """act(first) * second over (rows, F), F = cols."""
    return chunks(f"gate_{act}", rows, cols)


def split_halves(*, rows: int, cols: int) -> Launch:
    """(rows, 2 F) to two of (rows, F), F = cols."""
    return chunks("split_halves", rows, cols)
