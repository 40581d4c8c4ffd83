"""Which arguments the kernels take, and in which form."""

from __future__ import annotations

from typing import Any

import numpy as np

from drivers import shapes
from drivers.dtypes import FLOAT32
from drivers.numpy.base import Array
from drivers.types import BatchInputs, NormWeights, QkNorm, Rope


def is_floats(x: Any, shape: tuple[int | None, ...]) -> bool:
    """Whether x is a float32 array of that shape; None stands for any size."""
    return (
        isinstance(x, np.ndarray)
        and x.dtype == FLOAT32
        and x.ndim == len(shape)
        and all(want is None or got == want for got, want in zip(x.shape, shape))
    )


def norm_fits(norm: NormWeights[Array], width: int) -> bool:
    """Whether the kernels take a norm, of rows of that width."""
    return (
        is_floats(norm.weight, (width,))
        and (norm.bias is None or (norm.kind == "layer" and is_floats(norm.bias, (width,))))
        and norm.kind in ("layer", "rms")
    )


def qk_norm_fits(norm: QkNorm[Array], head_dim: int) -> bool:
    """Whether the kernels take norms of heads."""
    return is_floats(norm.q_weight, (head_dim,)) and is_floats(norm.k_weight, (head_dim,))


def rope_fits(rope: Rope[Array], sequences: int, longest: int, head_dim: int) -> bool:
    """Whether the kernels take tables of a rotation, for a batch and heads of these sizes."""
    shape = rope.cos.shape
    return (
        is_floats(rope.cos, shape)
        and is_floats(rope.sin, shape)
        and len(shape) in (2, 3)
        and (len(shape) == 2 or shape[0] == sequences)
        and shape[-2] >= longest
        and 2 * shape[-1] <= head_dim
    )


def bias_fits(position_bias: Array, num_heads: int, longest: int) -> bool:
    """Whether the kernels take a position bias, for sequences up to that length."""
    return (
        is_floats(position_bias, (num_heads, None))
        and position_bias.shape[1] % 2 == 1
        and position_bias.shape[1] >= 2 * longest - 1
    )


def bounds_of(op: str, batch: BatchInputs[Array]) -> Array:
    """(B + 1,) where each sequence starts, and where the last one ends."""
    shapes.require(op, "cu_seqlens", batch.cu_seqlens.shape, (batch.batch + 1,))
    bounds: Array = plain(batch.cu_seqlens)
    return bounds


def rope_table(table: Array) -> Array:
    """(P, R / 2) or (B, P, R / 2) with the first dimension always there."""
    whole: Array = plain(table)
    return whole[None] if whole.ndim == 2 else whole


def plain(x: Any) -> Any:
    """The array as kernels read it: contiguous and aligned, copied where it is not; or None."""
    return None if x is None else np.require(x, requirements=["C", "A"])
