"""The sets that have tiles; bf16 and the product of tiles in NumPy, as the manuals define them."""

from __future__ import annotations

import numpy as np

from tests.conftest import NATIVE


def sets_of_tiles() -> list[str]:
    """The instruction sets of this machine that compute in bfloat16; the emulated one is always."""
    if not NATIVE:
        return []
    from drivers.cpu.native_module import instruction_sets, open_kernels

    return [name for name in instruction_sets() if open_kernels(name).has_tiles]


TILE_SETS = sets_of_tiles()

SMALLEST = np.float32(2.0**-126)  # that is not denormal


def bf16_bits(x):
    """float32 -> bf16 bits: to nearest, ties to even; denormals to zero, NaN made quiet."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nearest = np.where(np.abs(x) < SMALLEST, (bits >> 16) & 0x8000, nearest)
    return np.where(np.isnan(x), (bits >> 16) | 0x40, nearest).astype(np.uint16)


def interleaved(b):
    """Rows in pairs, as tiles take their right factor: (K, N) -> (K / 2, N, 2)."""
    return np.ascontiguousarray(b.reshape(len(b) // 2, 2, b.shape[1]).transpose(0, 2, 1))


def tile_matmul_reference(name, a, b, c):
    """c + a @ b as the set computes it: bf16 bits (M, K) and (K, N), c (M, N) float32.

    AVX512_BF16 (VDPBF16PS) adds the products of each pair onto the sum, the odd one first; tiles
    (TDPBF16PS) add up even and odd products apart, 32 of the depth at a time, then onto the sum.
    """
    a, b = (flushed((x.astype(np.uint32) << 16).view(np.float32)) for x in (a, b))
    total = flushed(c)
    for first in range(0, a.shape[1], 32):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for k in range(first, first + 32, 2):
            if name == "avx512_bf16":
                total = multiply_add(a[:, k + 1, None], b[k + 1], total)
                total = multiply_add(a[:, k, None], b[k], total)
            else:
                even = multiply_add(a[:, k, None], b[k], even)
                odd = multiply_add(a[:, k + 1, None], b[k + 1], odd)
        if name != "avx512_bf16":
            total = flushed(total + flushed(even + odd))
    return total


def multiply_add(a, b, c):
    """a * b + c, rounded once: the product of two bf16 is exact in float64."""
    return flushed((a.astype(np.float64) * b + c).astype(np.float32))


def flushed(x):
    """Denormals become zero and keep their sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)
