"""Tensors of the bfloat16 mode: packed weights, tokens, and linear layers not yet computed.

Tokens are kept as float32 rows (where a residual or a norm left them), as bf16 tiles (where a
product will read them), or as both; each is made from the other when it is asked for. A linear
layer waits for what follows it, so that both run as one kernel. Layouts: native/tile_kernels.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from drivers.cpu.memory import aligned_empty
from drivers.dtypes import BFLOAT16, FLOAT32
from drivers.numpy.pool import MemoryPool
from drivers.types import Activation

if TYPE_CHECKING:
    from rayvec_native import Kernels

F32 = NDArray[np.float32]
Bits = NDArray[np.uint16]

BLOCK = 32  # every width and depth is a multiple of it, and rows are padded to one
HEAD_DIMS = (32, 64, 96, 128)
UINT16 = np.dtype(np.uint16)


def padded(tokens: int) -> int:
    """Rows that so many tokens take in tiles."""
    return -(-tokens // BLOCK) * BLOCK


@dataclass(frozen=True)
class PackedTiles:
    """A weight (out, in) in panels of tiles, bf16 bits, flat. Both sizes are multiples of 32.

    gated: whether the two halves of a panel hold columns of the first and of the second half.
    """

    shape: tuple[int, int]
    bits: Bits
    gated: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        return BFLOAT16

    def unpacked(self) -> F32:
        """The rounded weight (out, in), for operations that no kernel does."""
        rows, depth = self.shape
        panels = self.bits.reshape(-1, depth // BLOCK, 2, 16, 16, 2)  # pair before column
        by_row = panels.transpose(0, 2, 4, 1, 3, 5)  # (panel, half, column, step, pair, 2)
        if self.gated:
            by_row = by_row.swapaxes(0, 1)
        return widened(np.ascontiguousarray(by_row).reshape(rows, depth))


@dataclass(frozen=True)
class TokenTable:
    """A look-up table whose sums are tokens in bfloat16. Its own values stay float32."""

    values: F32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return BFLOAT16


class TileSpace:
    """Kernels with tiles, and where their results are stored."""

    def __init__(self, kernels: Kernels, pool: MemoryPool, activations: Any) -> None:
        """activations: the native module's enumeration of them."""
        self.kernels = kernels
        self._pool = pool
        self._activations = activations

    def new_rows(self, shape: tuple[int, int]) -> F32:
        return aligned_empty(shape, FLOAT32, self._pool)

    def new_tiles(self, tokens: int, width: int) -> Bits:
        return aligned_empty((padded(tokens) * width,), UINT16, self._pool)

    def rows_of(self, tiles: Any, shape: tuple[int, int]) -> F32:
        """Tiles of that shape (T, E) as float32 rows."""
        rows = self.new_rows(shape)
        self.kernels.to_rows(tiles, rows)
        return rows

    def tiles_of(self, rows: Any) -> Bits:
        """Float32 rows (T, E) as tiles."""
        tiles = self.new_tiles(*rows.shape)
        self.kernels.to_tiles(rows, tiles)
        return tiles

    def activation(self, act: Activation | None) -> Any:
        return getattr(self._activations, act or "none")

    def pack(self, weight: F32, *, gated: bool) -> PackedTiles:
        """weight: (out, in), contiguous, of sizes that `fits_tiles` allows."""
        rows, depth = weight.shape
        bits = aligned_empty((rows * depth,), UINT16)
        self.kernels.pack_tiles(weight, gated, bits)
        return PackedTiles((rows, depth), bits, gated)


class Tokens:
    """Tokens (T, E) of dtype bfloat16: float32 rows (T, E), bf16 bits in tiles, or both."""

    def __init__(
        self,
        space: TileSpace,
        shape: tuple[int, int],
        rows: F32 | None = None,
        tiles: Bits | None = None,
    ) -> None:
        """At least one of rows and tiles is given."""
        self._space = space
        self.shape = shape
        self._rows = rows
        self._tiles = tiles

    @property
    def dtype(self) -> np.dtype[Any]:
        return BFLOAT16

    @property
    def rows(self) -> F32:
        """(T, E) float32."""
        if self._rows is None:
            self._rows = self._space.rows_of(self._tiles, self.shape)
        return self._rows

    @property
    def tiles(self) -> Bits:
        """bf16 bits in tiles, flat; E is a multiple of 32."""
        if self._tiles is None:
            self._tiles = self._space.tiles_of(self._rows)
        return self._tiles

    def heads(self, head_dim: int) -> Bits:
        """A copy as heads (E / head_dim, padded rows, head_dim), flat."""
        tokens, width = self.shape
        steps = head_dim // BLOCK
        by_head = self.tiles.reshape(padded(tokens) // 16, -1, steps, 16, BLOCK)
        out = self._space.new_tiles(tokens, width)
        out.reshape(-1, padded(tokens) // 16, 16, steps, BLOCK)[...] = by_head.transpose(
            1, 0, 3, 2, 4
        )
        return out


class Product:
    """act(x @ weight.T + bias) not yet computed: (T, out), or (T, F) of a gated weight."""

    def __init__(
        self,
        space: TileSpace,
        x: Operand,
        weight: PackedTiles,
        bias: F32 | None,
        act: Activation | None,
    ) -> None:
        self._space = space
        self.x = x
        self.weight = weight
        self.bias = bias
        self.act = act
        self._computed: Tokens | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.weight.shape[0] // (2 if self.weight.gated else 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        return BFLOAT16

    @property
    def waits(self) -> bool:
        """Whether it is still to be computed."""
        return self._computed is None

    @property
    def is_plain(self) -> bool:
        """Whether it has neither an activation nor a gate."""
        return self.act is None and not self.weight.gated

    def tokens(self) -> Tokens:
        """The result, rounded to bf16; computed once."""
        if self._computed is None:
            tokens, width = self.shape
            out = self._space.new_tiles(tokens, width)
            self._space.kernels.linear_tiles(
                tokens,
                self.x.tiles,
                self.weight.bits,
                self.bias,
                self._space.activation(self.act),
                self.weight.gated,
                out,
            )
            self._computed = Tokens(self._space, self.shape, tiles=out)
        return self._computed

    @property
    def rows(self) -> F32:
        """(T, out) float32."""
        return self.tokens().rows

    @property
    def tiles(self) -> Bits:
        """bf16 bits in tiles, flat."""
        return self.tokens().tiles

    def heads(self, head_dim: int) -> Bits:
        """The result of a plain layer as heads (out / head_dim, padded rows, head_dim), flat."""
        if self._computed is not None or not self.is_plain:
            return self.tokens().heads(head_dim)
        out = self._space.new_tiles(*self.shape)
        self._space.kernels.linear_heads(
            self.shape[0], self.x.tiles, self.weight.bits, self.bias, head_dim, out
        )
        return out


Operand: TypeAlias = Tokens | Product


def fits_tiles(shape: tuple[int, ...], gated: bool) -> bool:
    """Whether a weight (out, in) of this shape can be packed in tiles."""
    rows, depth = shape
    outputs = rows // 2 if gated else rows
    return min(rows, depth) > 0 and outputs % BLOCK == 0 and depth % BLOCK == 0


def widened(bits: Bits) -> F32:
    """The values of bf16 bits in float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
