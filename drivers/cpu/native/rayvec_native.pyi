"""Native kernels of rayvec's cpu driver, by instruction set."""

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

_F32 = NDArray[np.float32]
_I32 = NDArray[np.int32]
_Bits = NDArray[np.uint16]

def abi_version() -> int:
    """The version of this module's functions; drivers/cpu/native_module.py wants the same."""

def instruction_sets() -> list[str]:
    """Names of the instruction sets that this processor runs, best first, for tests last."""

class Activation(Enum):
    """What a linear layer's kernel applies: drivers.types.Activation, and nothing."""

    none = 0
    gelu = 1
    gelu_tanh = 2
    quick_gelu = 3
    relu = 4
    silu = 5
    tanh = 6

class Kernels:
    """The kernels of one instruction set.

    Arrays are contiguous, of the dtype that is given, and never copied; results go to `out`. Raises
    ValueError where sizes do not fit together, TypeError for any other array.
    """

    @property
    def name(self) -> str:
        """The instruction set's name."""
    @property
    def lanes(self) -> int:
        """float32 values in one vector."""
    @property
    def has_tiles(self) -> bool:
        """Whether the kernels of bfloat16 on tiles are there."""
    def packed_size(self, rows: int, depth: int, gated: bool) -> int:
        """float32 values of a packed weight (rows, depth)."""
    def pack_linear(self, weight: _F32, gated: bool, packed: _F32) -> None:
        """weight (rows, depth) to panels: packed (packed_size)."""
    def linear(
        self,
        x: _F32,
        packed: _F32,
        bias: _F32 | None,
        residual: _F32 | None,
        act: Activation,
        gated: bool,
        out: _F32,
    ) -> None:
        """out (T, N) = act(x @ weight.T + bias) + residual; gated: act(first) * second half."""
    def add_norm(
        self,
        x: _F32,
        residual: _F32 | None,
        weight: _F32,
        bias: _F32 | None,
        eps: float,
        centred: bool,
        sandwich: bool,
        out: _F32,
    ) -> None:
        """out (T, E) = norm(x + residual), or with `sandwich` residual + norm(x)."""
    def embed(
        self,
        tables: Sequence[_F32],
        ids: Sequence[_I32],
        weight: _F32 | None,
        bias: _F32 | None,
        eps: float,
        centred: bool,
        out: _F32,
    ) -> None:
        """out (T, E) = the sum of the tables' rows (*, E) by ids (T), normed with a weight."""
    def attention(
        self,
        qkv: _F32,
        cu_seqlens: _I32,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        cos: _F32 | None,
        sin: _F32 | None,
        q_norm: _F32 | None,
        k_norm: _F32 | None,
        norm_eps: float,
        window_left: int,
        window_right: int,
        position_bias: _F32 | None,
        out: _F32,
    ) -> None:
        """out (T, N D) of qkv (T, (N + 2 KV) D); cos, sin (1 or B, P, R / 2); windows -1 for all;
        position_bias (N, 2 P - 1)."""
    def mean_rows(self, x: _F32, cu_seqlens: _I32, weights: _F32, out: _F32) -> None:
        """out (B, E) = the mean of each sequence's rows of x (T, E), weighted by weights (T).

        A row of weight zero leaves no trace, NaN neither; a sequence without weight gives zeros.
        """
    def max_rows(self, x: _F32, starts: _I32, ends: _I32, out: _F32) -> None:
        """out (B, E) = the largest of x (T, E) in each column, from starts (B) to ends (B).

        NaN where there is one, zeros where there are no rows.
        """

    # bfloat16 on tiles: bf16 bits in the layouts of tile_kernels.hpp, flat. Without tiles each
    # raises ValueError. A norm is there where its weight is.

    def pack_tiles(self, weight: _F32, gated: bool, packed: _Bits) -> None:
        """weight (N, K), both multiples of 32, to panels of tiles: packed (N K)."""
    def to_tiles(self, rows: _F32, tiles: _Bits) -> None:
        """rows (T, E) to tiles, zeros after the last token."""
    def to_rows(self, tiles: _Bits, rows: _F32) -> None:
        """Tiles to rows (T, E)."""
    def linear_tiles(
        self,
        tokens: int,
        x: _Bits,
        packed: _Bits,
        bias: _F32 | None,
        act: Activation,
        gated: bool,
        out: _Bits,
    ) -> None:
        """out (T, N) in tiles = act(x @ weight.T + bias); gated: act(first) * second half."""
    def linear_heads(
        self,
        tokens: int,
        x: _Bits,
        packed: _Bits,
        bias: _F32 | None,
        head_dim: int,
        out: _Bits,
    ) -> None:
        """out (N / D, padded T, D) = x @ weight.T + bias."""
    def linear_rows(
        self,
        x: _Bits,
        packed: _Bits,
        bias: _F32 | None,
        residual: _F32 | None,
        weight: _F32 | None,
        norm_bias: _F32 | None,
        eps: float,
        centred: bool,
        sandwich: bool,
        rows: _F32,
        tiles: _Bits | None,
    ) -> None:
        """y = x @ weight.T + bias, then as norm_rows, to rows (T, N) and tiles."""
    def ffn(
        self,
        x: _Bits,
        packed: _Bits,
        bias: _F32 | None,
        act: Activation,
        gated: bool,
        second_packed: _Bits,
        second_bias: _F32 | None,
        residual: _F32 | None,
        weight: _F32 | None,
        norm_bias: _F32 | None,
        eps: float,
        centred: bool,
        sandwich: bool,
        rows: _F32,
        tiles: _Bits | None,
    ) -> None:
        """linear_rows of a second layer on the result of a first one."""
    def norm_rows(
        self,
        x: _F32,
        residual: _F32 | None,
        weight: _F32 | None,
        norm_bias: _F32 | None,
        eps: float,
        centred: bool,
        sandwich: bool,
        rows: _F32,
        tiles: _Bits | None,
    ) -> None:
        """x + residual, norm(x + residual), or with `sandwich` residual + norm(x): (T, E)."""
    def embed_tiles(
        self,
        tables: Sequence[_F32],
        ids: Sequence[_I32],
        weight: _F32 | None,
        norm_bias: _F32 | None,
        eps: float,
        centred: bool,
        rows: _F32,
        tiles: _Bits | None,
    ) -> None:
        """The sum of the tables' rows (*, E) by ids (T), normed, to rows (T, E) and tiles."""
    def prepare_heads(
        self,
        heads: _Bits,
        tokens: int,
        cu_seqlens: _I32,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        cos: _F32 | None,
        sin: _F32 | None,
        q_norm: _F32 | None,
        k_norm: _F32 | None,
        norm_eps: float,
    ) -> None:
        """Norms and rotates query and key heads in place."""
    def attend_heads(
        self,
        heads: _Bits,
        tokens: int,
        cu_seqlens: _I32,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window_left: int,
        window_right: int,
        position_bias: _F32 | None,
        out: _Bits,
    ) -> None:
        """out (T, N D) in tiles, of heads (N + 2 KV, padded T, D)."""

def kernels(name: str) -> Kernels:
    """The kernels of that instruction set. Raises ValueError, with the names there are."""

class testing:
    """A submodule: kernels that tests and benchmarks alone call.

    Arrays are contiguous and never copied.
    """

    @staticmethod
    def tile_matmul(
        kernels: Kernels, a: NDArray[np.uint16], b: NDArray[np.uint16], c: NDArray[np.float32]
    ) -> None:
        """c += a @ b on tiles, of bf16 bits: a (M, K), b (K / 2, N, 2), c (M, N).

        K is a multiple of 32 and N of 16. Raises ValueError for kernels without tiles.
        """
    @staticmethod
    def fma_peak(kernels: Kernels, iterations: int) -> int:
        """Multiply and add in registers alone; the floating-point operations that were done."""
    @staticmethod
    def tile_peak(kernels: Kernels, iterations: int) -> int:
        """fma_peak of the tiles. Raises ValueError for kernels without tiles."""
