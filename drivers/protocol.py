"""The contract between models and devices: the primitives, the forward operations, `Driver`.

The rules that all operations share (storage, `out`, masks, windows, size 0, refusals) are those of
`drivers.primitives`. Shape letters: `drivers.types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from drivers.trait import TraitNames
from drivers.types import (
    Activation,
    BatchInputs,
    EmbeddingTable,
    NormOrder,
    NormWeights,
    PoolMode,
    QkNorm,
    Rope,
    T,
    WeightRole,
)


class Forward(Protocol[T]):
    """The coarse operations that models are written in; a fast device does each in one go."""

    @property
    def name(self) -> str:
        """The name `open_driver` knows this driver by."""
        ...

    @property
    def preferred_tokens(self) -> int:
        """How many tokens a batch should hold on this device, padding counted."""
        ...

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Storage types of weights and activations that this driver has, the default first."""
        ...

    def pack(self, weight: NDArray[Any], role: WeightRole, dtype: DTypeLike) -> T:
        """A host weight in the device's own layout and storage type."""
        ...

    def packed_layout(self, dtype: DTypeLike) -> str | None:
        """The name of the layout that packed linear weights have, for files of them.

        Two drivers with the same name read each other's. None where packing keeps the host's
        layout, and nothing is gained by a file.
        """
        ...

    def packed_values(self, packed: T) -> NDArray[Any]:
        """The memory of a packed linear or gated weight, as a host array for a file."""
        ...

    def from_packed(
        self, values: NDArray[Any], shape: tuple[int, ...], role: WeightRole, dtype: DTypeLike
    ) -> T:
        """What `pack` gave for a weight of that shape, on `packed_values` read back; no copy."""
        ...

    def embed(
        self,
        batch: BatchInputs[T],
        tables: Sequence[EmbeddingTable[T]],
        norm: NormWeights[T] | None = None,
    ) -> T:
        """Sum of table look-ups, then the norm where one is given -> tokens (T, E)."""
        ...

    def linear(
        self,
        x: T,
        weight: T,
        bias: T | None = None,
        *,
        act: Activation | None = None,
        residual: T | None = None,
    ) -> T:
        """act(x @ weight.T + bias) + residual: (T, in) and packed (out, in) -> (T, out)."""
        ...

    def gated_linear(self, x: T, weight: T, bias: T | None = None, *, act: Activation) -> T:
        """act(a) * b with [a | b] = x @ weight.T + bias: (T, in) and packed (2 F, in) -> (T, F).

        GeGLU with `gelu`, SwiGLU with `silu` (Shazeer 2020); bias (2 F,). The first F rows of the
        weight make the half that is activated.
        """
        ...

    def add_norm(
        self, x: T, residual: T | None, norm: NormWeights[T], *, order: NormOrder = "pre"
    ) -> T:
        """norm(x + residual), or in the order `sandwich` residual + norm(x), in one pass: (T, E).

        The norm is of the kind that `norm` says. Without a residual both orders are norm(x).
        """
        ...

    def attention(
        self,
        qkv: T,
        batch: BatchInputs[T],
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        rope: Rope[T] | None = None,
        qk_norm: QkNorm[T] | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        causal: bool = False,
        position_bias: T | None = None,
    ) -> T:
        """Unpadded multi-head attention: qkv (T, (N + 2 KV) D), q before k before v, -> (T, N D).

        kv_heads is num_heads, head_dim follows from the width, and scale is head_dim ** -0.5, where
        they are None. Query head n attends to key head n * KV // N (Ainslie et al. 2023). qk_norm
        acts on each head before rope does. A query sees the keys from window_left before it to
        window_right after it, both ends included, and with `causal` none after it. position_bias
        (N, 2 P - 1) float32, P >= S: entry key - query + P - 1 is added to the scaled score
        (Raffel et al. 2020; ALiBi, Press et al. 2022).
        """
        ...

    def pool(
        self,
        x: T,
        batch: BatchInputs[T],
        modes: Sequence[PoolMode],
        *,
        dim: int | None = None,
        normalize: bool = False,
    ) -> NDArray[np.float32]:
        """One host vector a sequence, the modes side by side: (T, E) -> (B, len(modes) * E).

        The only copy back to the host. The first `pool_skip` tokens of a row are left out; a
        `weighted_mean` weighs the token at position p (from 0) with p + 1, skipped ones counted
        (Muennighoff 2022); `mean_sqrt_len` divides the sum by the root of the count. With `dim`
        only the first `dim` values are kept (Kusupati et al. 2022), and with `normalize` what is
        kept is divided by its length, a zero row staying zero.
        """
        ...


class Driver(TraitNames[T], Forward[T], Protocol[T]):
    """A device: every primitive, the trait's own names for them, and the forward operations."""
