"""The activations' numbers in the kernels: `enum Activation` of kernels/prelude.cu."""

from __future__ import annotations

from drivers.types import Activation

ACTIVATION_NUMBERS: dict[Activation | None, int] = {
    None: 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "quick_gelu": 3,
    "relu": 4,
    "silu": 5,
    "tanh": 6,
}
