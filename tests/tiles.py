"""bf16 and the product of tiles in NumPy, as the manual of the instructions defines them."""

from __future__ import annotations

import os

import numpy as np

TILE_SET = os.environ.get("RAYVEC_TILE_SET", "amx_bf16_emulated")
"""The instruction set whose tiles are tested: emulated ones, or with `make test-amx` the real."""

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


def tile_matmul_reference(a, b, c):
    """c + a @ b by TDPBF16PS, 32 of the depth at a time: bf16 bits (M, K) and (K, N), c (M, N)."""
    a, b = (flushed((x.astype(np.uint32) << 16).view(np.float32)) for x in (a, b))
    total = flushed(c)
    for first in range(0, a.shape[1], 32):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for k in range(first, first + 32, 2):
            even = multiply_add(a[:, k, None], b[k], even)
            odd = multiply_add(a[:, k + 1, None], b[k + 1], odd)
        total = flushed(total + flushed(even + odd))
    return total


def multiply_add(a, b, c):
    """a * b + c, rounded once: the product of two bf16 is exact in float64."""
    return flushed((a.astype(np.float64) * b + c).astype(np.float32))


def flushed(x):
    """Denormals become zero and keep their sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)
