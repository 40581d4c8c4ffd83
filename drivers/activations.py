"""Activations in float32 on the host, block by block so that the temporaries stay in cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers.errors import DriverError
from drivers.types import Activation

F32 = NDArray[np.float32]

BLOCK_ELEMENTS = 16384  # 64 KiB of float32: a block and its temporaries fit the L2 cache

# The upper tail Q(a) = erfc(a / sqrt 2) / 2 of the normal distribution, for a >= 0, is
# exp(-a^2 / 2) * sum_k TAIL[k] t^(k+1) with t = 1 / (1 + TAIL_SCALE a): a weighted least-squares
# fit to 60-digit values over [0, 14], of relative error 3.2e-8.
TAIL_SCALE = 0.35
TAIL = (
    0.1396214077,
    0.1398618032,
    0.1198334074,
    0.1055056131,
    -0.02310350487,
    0.1591638803,
    -0.2557042304,
    0.1439663182,
    -0.02914471045,
)
TAIL_END = 40.0  # Q is 0 in float32 long before; keeps infinity out of 0 * a


def _gelu(x: F32) -> F32:
    """x * Phi(x) = max(x, 0) - |x| * Q(|x|): no cancellation on either side."""
    a = np.minimum(np.abs(x), np.float32(TAIL_END))
    t = a * np.float32(TAIL_SCALE)
    t += 1
    np.reciprocal(t, out=t)
    tail = t * np.float32(TAIL[-1])
    for coefficient in TAIL[-2::-1]:
        tail += np.float32(coefficient)
        tail *= t
    np.multiply(a, a, out=t)
    t *= np.float32(-0.5)
    tail *= np.exp(t, out=t)
    tail *= a
    gelu: F32 = np.subtract(np.maximum(x, 0), tail, out=tail)
    return gelu


def _gelu_tanh(x: F32) -> F32:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016."""
    inner: F32 = x * x
    inner *= np.float32(0.044715)
    inner += 1
    inner *= x
    inner *= np.float32((2 / np.pi) ** 0.5)
    np.tanh(inner, out=inner)
    inner += 1
    inner *= np.float32(0.5)
    inner *= x
    return inner


def _sigmoid_times(x: F32, slope: float) -> F32:
    """x * sigmoid(slope * x); an overflow to infinity gives the right limit."""
    y: F32 = x * np.float32(-slope)
    np.exp(y, out=y)
    y += 1
    np.divide(x, y, out=y)
    return y


ACTIVATIONS: dict[Activation, Callable[[F32], F32]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: _sigmoid_times(x, 1.702),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: _sigmoid_times(x, 1.0),
    "tanh": lambda x: np.tanh(x),
}


def require_activation(op: str, act: Activation) -> None:
    """Raise DriverError for an activation that no driver has."""
    if act not in ACTIVATIONS:
        raise DriverError(f"{op}: unknown activation '{act}', have {', '.join(ACTIVATIONS)}")


def activate(x: NDArray[Any], act: Activation, out: NDArray[Any], bias: F32 | None = None) -> None:
    """out = act(x + bias) for contiguous arrays of one shape; bias runs along the last dimension.

    float32 arithmetic whatever the storage type, overflow to infinity where the formula overflows;
    `out` may be `x`.
    """
    apply = ACTIVATIONS[act]
    cols = max(1, x.shape[-1] if x.ndim else 1)
    rows_in, rows_out = x.reshape(-1, cols), out.reshape(-1, cols)
    step = max(1, BLOCK_ELEMENTS // cols)
    with np.errstate(over="ignore"):
        for start in range(0, len(rows_in), step):
            block = rows_in[start : start + step].astype(np.float32, copy=False)
            rows_out[start : start + step] = apply(block if bias is None else block + bias)


def gated(x: NDArray[Any], other: NDArray[Any], act: Activation, out: NDArray[Any]) -> None:
    """out = act(x) * other for arrays of one shape; x and other may be halves of wider rows.

    float32 arithmetic, rounded once; `out` may be `x` or `other`.
    """
    apply = ACTIVATIONS[act]
    if x.ndim == 1:
        x, other, out = x[None], other[None], out[None]
    stride = max(1, BLOCK_ELEMENTS // max(1, x[0].size if len(x) else 1))
    with np.errstate(over="ignore"):
        for start in range(0, len(x), stride):
            rows = slice(start, start + stride)
            y = apply(x[rows].astype(np.float32, copy=False))
            y *= other[rows]
            out[rows] = y
