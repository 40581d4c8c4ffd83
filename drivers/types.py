"""The values that pass between models and drivers.

Shape letters, used in every docstring and shape comment:

    B  sequences in a batch      E  hidden size            D  head_dim
    S  padded length (max_seq)   N  attention heads        F  intermediate size
    T  real tokens in the batch  KV key/value heads        W  attention window
    G  B * N, one for each sequence and head: heads are stored as (G, S, D), sequence by sequence
    R  rotary dimensions of a head, even and at most D
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

MASK_VALUE = -10000.0
"""What the float attention mask adds to the score of a padded key."""

MASKED_AT_OR_BELOW = -5000.0
"""A mask value at or below this means masked: its key has weight exactly 0."""

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh"]
"""Activations: `gelu` is the exact erf form, `gelu_tanh` the tanh approximation."""

NormKind = Literal["layer", "rms"]
"""Layer norm (Ba et al. 2016) or root-mean-square norm (Zhang and Sennrich 2019)."""

NormOrder = Literal["pre", "sandwich"]
"""Where a residual joins `add_norm`: norm(x + residual), or residual + norm(x) as in Gemma."""

PoolMode = Literal["cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"]
"""Ways to make one vector of a sequence's tokens."""

WeightRole = Literal["linear", "gated", "table", "vector"]
"""How a weight is used: a matrix (out, in), one of `gated_linear` (2 F, in), a look-up table
(rows, E), or a bias or norm (E,)."""


@runtime_checkable
class Tensor(Protocol):
    """A handle to memory of one driver. Shape, dtype and layout ride on it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


T = TypeVar("T", bound=Tensor)


@dataclass(frozen=True)
class Encoding:
    """One tokenized sequence, special tokens included, without padding.

    input_ids: (S,) int32. type_ids: (S,) int32, or None where every token has type 0.
    pool_skip: leading tokens that take part in attention but not in pooling (a prompt
    left out of the vector). position_ids: (S,) int32, or None where they count from 0.
    """

    input_ids: NDArray[np.int32]
    type_ids: NDArray[np.int32] | None = None
    pool_skip: int = 0
    position_ids: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class BatchInputs(Generic[T]):
    """A batch on the device.

    Unpadded (`prepare_batch_unpadded`): the ids are flat, (T,). Padded (`prepare_batch`): they are
    (B * S,), padded positions holding id 0, type 0 and position 0. The masks are (B, S) in both.
    """

    input_ids: T  # (T,) or (B * S,) int32
    token_type_ids: T  # same shape, int32
    position_ids: T  # same shape, int32, each sequence counting from 0 unless it says otherwise
    cu_seqlens: T  # (B + 1,) int32, where each sequence starts among the T tokens
    int_mask: T  # (B, S) int32, 1 for a real token
    attn_mask: T  # (B, S) float32, 0 for a real token, MASK_VALUE for padding
    seq_lengths: tuple[int, ...]
    pool_skip: tuple[int, ...]
    max_seq: int
    padded: bool

    @property
    def batch(self) -> int:
        """B, the sequences."""
        return len(self.seq_lengths)

    @property
    def total_tokens(self) -> int:
        """T, the real tokens."""
        return sum(self.seq_lengths)


@dataclass(frozen=True)
class EmbeddingTable(Generic[T]):
    """One look-up table of `embed` and which of the batch's ids index it."""

    table: T  # (rows, E)
    ids: Literal["input_ids", "token_type_ids", "position_ids"]


@dataclass(frozen=True)
class NormWeights(Generic[T]):
    """A norm: weight (E,), bias (E,) or None, and eps. An RMS norm has no bias."""

    weight: T
    bias: T | None
    eps: float
    kind: NormKind = "layer"


@dataclass(frozen=True)
class Rope(Generic[T]):
    """Rotary position tables (Su et al. 2021): cos and sin of position times frequency, float32.

    (P, R / 2) for all sequences, or (B, P, R / 2) where the base depends on a sequence's length;
    row p is for position p, and P >= S.
    """

    cos: T
    sin: T


@dataclass(frozen=True)
class QkNorm(Generic[T]):
    """An RMS norm of every head of q and of k, before the rotation: weights (D,), and eps."""

    q_weight: T
    k_weight: T
    eps: float


def lengths_of(encodings: Sequence[Encoding]) -> tuple[int, ...]:
    """The number of tokens of each encoding."""
    return tuple(len(encoding) for encoding in encodings)
