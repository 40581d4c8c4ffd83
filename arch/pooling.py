"""What follows pooling, on the host in float32: Dense and Normalize modules, and a cut width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arch.checkpoint import Checkpoint, DenseActivation, DenseModule, NormalizeModule
from arch.errors import CheckpointError
from arch.weights import WeightReader, WeightSpec, open_safetensors
from drivers.activations import ACTIVATIONS

F32 = NDArray[np.float32]

NORM_EPS = np.float32(1e-12)  # torch.nn.functional.normalize

DENSE_WEIGHT = WeightSpec("weight", ("linear.weight",), "OI", "linear")
DENSE_BIAS = WeightSpec("bias", ("linear.bias",), "O", "vector")

APPLY: Mapping[DenseActivation, Callable[[F32], F32]] = {
    "identity": lambda x: x,
    "sigmoid": lambda x: (1 / (1 + np.exp(-x))).astype(np.float32),
    **dict(ACTIVATIONS.items()),
}


@dataclass(frozen=True)
class Dense:
    """act(x @ weight.T + bias): (B, I) -> (B, O), row by row so that a row keeps its bits.

    BLAS adds in another order for one row than for many.
    """

    weight: F32  # (O, I)
    bias: F32 | None  # (O,)
    act: DenseActivation

    def __call__(self, x: F32) -> F32:
        y: F32 = np.empty((len(x), len(self.weight)), np.float32)  # (B, O)
        for row, product in zip(x, y):
            np.matmul(self.weight, row, out=product)
        return APPLY[self.act](y if self.bias is None else y + self.bias)


def normalize(x: F32) -> F32:
    """Rows divided by their Euclidean norm: (B, D) -> (B, D). A zero row stays zero."""
    unit: F32 = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), NORM_EPS)
    return unit


@dataclass(frozen=True)
class Head:
    """The modules after pooling, in the folder's order.

    dim: the width to cut vectors to (their first values; Kusupati et al. 2022), or None. A cut
    vector is normalised again where the full one was.
    """

    steps: tuple[Callable[[F32], F32], ...]
    width: int
    dim: int | None
    normalized: bool

    def __call__(self, pooled: F32) -> F32:
        """(B, P) float32 -> (B, D) float32."""
        x = pooled
        for step in self.steps:
            x = step(x)
        if self.dim is None:
            return x
        x = np.ascontiguousarray(x[:, : self.dim])
        return normalize(x) if self.normalized else x


def read_head(checkpoint: Checkpoint, hidden_size: int, dim: int | None) -> Head:
    """Load the modules after pooling, checking that each takes what the one before it gives.

    Raises CheckpointError for a width that does not fit, weights that do not, and a `dim` beyond
    the width.
    """
    if checkpoint.pooled_width not in (None, hidden_size):
        raise CheckpointError(
            checkpoint.root,
            f"the pooling module is for width {checkpoint.pooled_width}, the model's hidden size "
            f"is {hidden_size}",
        )
    width = hidden_size * len(checkpoint.pool_modes)
    steps: list[Callable[[F32], F32]] = []
    for module in checkpoint.head:
        if isinstance(module, NormalizeModule):
            steps.append(normalize)
            continue
        if module.in_features != width:
            raise CheckpointError(
                module.folder, f"takes {module.in_features} features, but {width} come to it"
            )
        steps.append(_read_dense(module))
        width = module.out_features
    if dim is not None and not 1 <= dim <= width:
        raise CheckpointError(checkpoint.root, f"dim is {dim}, wanted 1 to {width}")
    return Head(tuple(steps), width, dim, checkpoint.normalized)


def _read_dense(module: DenseModule) -> Dense:
    path = module.folder / "model.safetensors"
    if not path.exists():
        raise CheckpointError(path, "is missing; pickled weights are never opened")
    specs = (DENSE_WEIGHT, DENSE_BIAS) if module.bias else (DENSE_WEIGHT,)
    reader = WeightReader(module.folder, open_safetensors(path), anchor="linear.weight")
    sizes = {"O": module.out_features, "I": module.in_features}
    values = reader.read(specs, sizes, np.float32)
    reader.finish(ignored=())
    return Dense(values["weight"], values.get("bias"), module.act)
