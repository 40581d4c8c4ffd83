"""Activation names of config.json: what each means, in the drivers' spelling."""

from __future__ import annotations

from collections.abc import Mapping

from drivers.types import Activation

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""By `transformers`' names; `gelu` is the exact erf form there."""
