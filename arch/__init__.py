"""arch: model families. Knows no device and no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from arch.checkpoint import Checkpoint, read_checkpoint
from arch.classic_bert import ClassicBert
from arch.encoder import ModelArch
from arch.errors import CheckpointError, naming_unreadable
from arch.modern_bert import ModernBert
from arch.nomic_bert import NomicBert
from arch.packed_weights import PackedWeights
from arch.qwen3 import Qwen3
from drivers.protocol import Driver

__all__ = [
    "ARCHS",
    "Checkpoint",
    "CheckpointError",
    "ModelArch",
    "fitting_dtypes",
    "load",
    "read_checkpoint",
]


class Family(Protocol):
    """What the registry holds: a class that loads a checkpoint for a driver."""

    @property
    def fits(self) -> tuple[np.dtype[Any], ...]:
        """Storage types that the family's activations fit in (`arch.encoder.EncoderModel`)."""
        ...

    def load(
        self, checkpoint: Checkpoint, driver: Driver[Any], dtype: DTypeLike, dim: int | None
    ) -> ModelArch: ...


ARCHS: Mapping[str, Family] = {
    "bert": ClassicBert,
    "camembert": ClassicBert,
    "distilbert": ClassicBert,
    "modernbert": ModernBert,
    "mpnet": ClassicBert,
    "nomic_bert": NomicBert,
    "qwen3": Qwen3,
    "roberta": ClassicBert,
    "xlm-roberta": ClassicBert,
}


def load(
    folder: Path,
    driver: Driver[Any],
    dtype: DTypeLike,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    dim: int | None = None,
    packed_folder: Path | None = None,
) -> ModelArch:
    """Load a model folder for a driver, as the folder says; the keywords overrule it where given.

    dtype: storage of weights and activations. pooling: a mode's name in sentence-transformers'
    spelling. normalize: whether vectors get norm 1. dim: the width to cut them to.
    packed_folder: where weights in the driver's own layout are kept and found; None for nowhere.
    Raises CheckpointError where the folder is damaged, or holds what no family here does exactly.
    """
    with naming_unreadable(folder):
        checkpoint = read_checkpoint(folder).overridden(pooling=pooling, normalize=normalize)
        family = _family_of(checkpoint)
        layout = driver.packed_layout(dtype)
        if packed_folder is None or layout is None:
            return family.load(checkpoint, driver, dtype, dim)
        weight_files = sorted(checkpoint.folder.glob("*.safetensors"))
        with PackedWeights(packed_folder, weight_files, layout) as packed:
            return family.load(replace(checkpoint, packed=packed), driver, dtype, dim)


def fitting_dtypes(folder: Path) -> tuple[np.dtype[Any], ...]:
    """Storage types that a model's activations fit in. Raises CheckpointError as `load` does."""
    with naming_unreadable(folder):
        return _family_of(read_checkpoint(folder)).fits


def _family_of(checkpoint: Checkpoint) -> Family:
    if checkpoint.model_type not in ARCHS:
        raise checkpoint.config.error("model_type", "one of " + ", ".join(sorted(ARCHS)))
    return ARCHS[checkpoint.model_type]
