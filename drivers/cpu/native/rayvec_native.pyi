"""Native kernels of rayvec's cpu driver, by instruction set."""

import numpy as np
from numpy.typing import NDArray

def abi_version() -> int:
    """The version of this module's functions; drivers/cpu/native_module.py wants the same."""

def instruction_sets() -> list[str]:
    """Names of the instruction sets that this processor runs, best first, for tests last."""

class Kernels:
    """The kernels of one instruction set."""

    @property
    def name(self) -> str:
        """The instruction set's name."""
    @property
    def lanes(self) -> int:
        """float32 values in one vector."""

def kernels(name: str) -> Kernels:
    """The kernels of that instruction set. Raises ValueError, with the names there are."""

class testing:
    """A submodule: kernels that tests alone call. Arrays are contiguous and never copied."""

    @staticmethod
    def dot(kernels: Kernels, a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
        """Sum of a[i] * b[i], both (length)."""
    @staticmethod
    def tile_matmul(
        kernels: Kernels, a: NDArray[np.uint16], b: NDArray[np.uint16], c: NDArray[np.float32]
    ) -> None:
        """c += a @ b on tiles, of bf16 bits: a (M, K), b (K / 2, N, 2), c (M, N).

        K is a multiple of 32 and N of 16. Raises ValueError for kernels without tiles.
        """
