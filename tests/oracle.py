"""What the operations mean: float64, straight from the formulas, and how near is near enough.

Every oracle takes the same rounded inputs that the driver takes, widens them, and rounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

F64 = NDArray[np.float64]

FLOAT32_ROUNDING = 2.0**-24
"""The relative error of one float32 operation, at most."""


def wide(x: Any) -> F64:
    """The same values in float64."""
    return np.asarray(x).astype(np.float64)


# ---- products and norms


def gemm(a: Any, b: Any, *, transpose_b: bool = False) -> F64:
    """a @ b, or a @ b.T over the last two dimensions."""
    right = wide(b)
    return wide(a) @ (right.swapaxes(-1, -2) if transpose_b else right)


def gemm_scale(a: Any, b: Any, *, transpose_b: bool = False) -> float:
    """The root of the summed squares of a product's summands, at its largest.

    What a sum of signed terms walks over on its way, even where it ends near zero.
    """
    squares = gemm(wide(a) ** 2, wide(b) ** 2, transpose_b=transpose_b)
    return float(np.sqrt(squares.max(initial=0.0)))


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float) -> F64:
    """(x - mean) / sqrt(var + eps) * weight + bias with the biased variance (Ba et al. 2016)."""
    x = wide(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * wide(weight) + wide(bias)


def rms_norm(x: Any, weight: Any, *, eps: float) -> F64:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""
    x = wide(x)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * wide(weight)


def l2_normalize(x: Any) -> F64:
    """x / max(norm(x), 1e-12) along the last dimension."""
    x = wide(x)
    return x / np.maximum(np.sqrt((x**2).sum(axis=-1, keepdims=True)), 1e-12)


# ---- activations


def gelu(x: Any) -> F64:
    """x * Phi(x) = x / 2 * (1 + erf(x / sqrt 2)) (Hendrycks and Gimpel 2016)."""
    x = wide(x)
    erf = np.array([math.erf(value / math.sqrt(2)) for value in x.ravel()]).reshape(x.shape)
    return x * 0.5 * (1 + erf)


def gelu_tanh(x: Any) -> F64:
    """The tanh approximation of gelu, from the same paper."""
    x = wide(x)
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: F64) -> F64:
    """1 / (1 + exp(-x)) in the form that never overflows."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def quick_gelu(x: Any) -> F64:
    """x * sigmoid(1.702 x)."""
    return wide(x) * _sigmoid(1.702 * wide(x))


def relu(x: Any) -> F64:
    """max(x, 0)."""
    return np.maximum(wide(x), 0)


def silu(x: Any) -> F64:
    """x * sigmoid(x)."""
    return wide(x) * _sigmoid(wide(x))


def tanh(x: Any) -> F64:
    """The hyperbolic tangent."""
    return np.tanh(wide(x))


ACTIVATIONS: dict[str, Callable[[Any], F64]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": relu,
    "silu": silu,
    "tanh": tanh,
}


def gated(x: Any, other: Any, act: str) -> F64:
    """act(x) * other (Shazeer 2020)."""
    return ACTIVATIONS[act](x) * wide(other)


# ---- attention


def in_window(queries: int, keys: int, left: int | None, right: int | None) -> NDArray[np.bool_]:
    """(queries, keys): True where -left <= key - query <= right; None is no limit."""
    offset = np.arange(keys) - np.arange(queries)[:, None]
    return (offset >= (-np.inf if left is None else -left)) & (
        offset <= (np.inf if right is None else right)
    )


def by_distance(position_bias: Any, seq: int) -> F64:
    """(N, 2 P - 1) -> (N, S, S): entry key - query + P - 1, one pair at a time."""
    table = wide(position_bias)
    middle = table.shape[1] // 2
    pairs = [[table[:, middle + key - query] for key in range(seq)] for query in range(seq)]
    return np.array(pairs).transpose(2, 0, 1)


def softmax(logits: F64, allowed: NDArray[np.bool_]) -> F64:
    """Over the last axis, over what is allowed alone; a row without any is zero."""
    weights = np.zeros_like(logits)
    for row, keys, out in zip(logits, allowed, weights, strict=True):
        if keys.any():
            powers = np.exp(row[keys] - row[keys].max())
            out[keys] = powers / powers.sum()
    return weights


def masked_softmax(
    scores: Any,
    mask: Any,
    *,
    num_heads: int,
    scale: float,
    window_left: int | None = None,
    window_right: int | None = None,
    position_bias: Any = None,
) -> F64:
    """softmax(scores * scale + mask + bias) over keys; scores (B * N, S, S), mask (B, S).

    Keys with a mask <= -5000 or outside the window are left out of the sum; rows without keys are
    zero.
    """
    scores, mask = wide(scores), wide(mask)
    seq = scores.shape[-1]
    near = in_window(seq, seq, window_left, window_right)
    bias = np.zeros((num_heads, seq, seq))
    if position_bias is not None:
        bias = by_distance(position_bias, seq)
    weights = np.zeros_like(scores)
    for group, block in enumerate(scores):
        row, head = divmod(group, num_heads)
        keys = mask[row] > -5000
        logits = np.where(keys, block, 0) * scale + np.where(keys, mask[row], 0) + bias[head]
        weights[group] = softmax(logits, near & keys)
    return weights


def band_keys(seq: int, window: int) -> NDArray[np.int64]:
    """(S, W): the key of each query and column, query - W // 2 + column; it may not exist."""
    return np.arange(seq)[:, None] - window // 2 + np.arange(window)


def banded_qk(q: Any, k: Any, *, window: int) -> F64:
    """(G, S, W): the dot product of query and key, -inf where there is no such key."""
    q, k = wide(q), wide(k)
    groups, seq, _ = q.shape
    keys = band_keys(seq, window)
    exists = (keys >= 0) & (keys < seq)
    scores = np.full((groups, seq, window), -np.inf)
    for group in range(groups):
        rows = k[group * len(k) // groups][np.clip(keys, 0, seq - 1)]  # (S, W, D)
        scores[group] = np.where(exists, (q[group][:, None] * rows).sum(axis=-1), -np.inf)
    return scores


def banded_softmax(scores: Any, *, scale: float, seq_lengths: Sequence[int] | None = None) -> F64:
    """softmax(scores * scale) over the band, without -inf and, given lengths, without padding."""
    scores = wide(scores)
    allowed = scores > -np.inf
    if seq_lengths is not None:
        groups, seq, window = scores.shape
        lengths = np.repeat(seq_lengths, groups // len(seq_lengths))
        allowed &= band_keys(seq, window) < lengths[:, None, None]
    logits = np.where(allowed, scores, 0) * scale
    flat = softmax(logits.reshape(-1, scores.shape[-1]), allowed.reshape(-1, scores.shape[-1]))
    return flat.reshape(scores.shape)


def banded_sv(weights: Any, v: Any) -> F64:
    """(G, S, D): the weighted sum of the values whose keys exist."""
    weights, v = wide(weights), wide(v)
    groups, seq, window = weights.shape
    out = np.zeros((groups, seq, v.shape[-1]))
    for group in range(groups):
        for query, keys in enumerate(band_keys(seq, window)):
            exists = (keys >= 0) & (keys < seq)
            out[group, query] = (
                weights[group, query, exists] @ v[group * len(v) // groups][keys[exists]]
            )
    return out


def rotate(x: Any, cos: Any, sin: Any) -> F64:
    """Rotate x[j] and x[j + R / 2] by the angle of position and pair j; x (..., S, D).

    cos and sin (P, R / 2), or broadcast against (..., P, R / 2).
    """
    x = wide(x)
    seq, pairs = x.shape[-2], np.shape(cos)[-1]
    c, s = (wide(table)[..., :seq, :] for table in (cos, sin))
    first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    rotated = [first * c - second * s, second * c + first * s]
    return np.concatenate([*rotated, x[..., 2 * pairs :]], axis=-1)


def attention(
    qkv: Any,
    seq_lengths: Sequence[int],
    *,
    num_heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    scale: float | None = None,
    rope: tuple[Any, Any] | None = None,
    qk_norm: tuple[Any, Any, float] | None = None,
    window_left: int | None = None,
    window_right: int | None = None,
    causal: bool = False,
    position_bias: Any = None,
) -> F64:
    """Multi-head attention of (T, (N + 2 KV) D), one sequence, one head at a time."""
    qkv = wide(qkv)
    kv_heads = num_heads if kv_heads is None else kv_heads
    dim = qkv.shape[1] // (num_heads + 2 * kv_heads) if head_dim is None else head_dim
    scale = dim**-0.5 if scale is None else scale
    out = np.zeros((len(qkv), num_heads * dim))
    start = 0
    for row, length in enumerate(seq_lengths):
        heads = qkv[start : start + length].reshape(length, -1, dim).transpose(1, 0, 2)
        allowed = in_window(length, length, window_left, 0 if causal else window_right)
        for head in range(num_heads):
            shared = head * kv_heads // num_heads
            q, k = heads[head], heads[num_heads + shared]
            v = heads[num_heads + kv_heads + shared]
            if qk_norm is not None:
                q = rms_norm(q, qk_norm[0], eps=qk_norm[2])
                k = rms_norm(k, qk_norm[1], eps=qk_norm[2])
            if rope is not None:
                tables = [t if np.ndim(t) == 2 else t[row] for t in rope]
                q, k = rotate(q, *tables), rotate(k, *tables)
            logits = q @ k.T * scale
            if position_bias is not None:
                logits = logits + by_distance(wide(position_bias)[head][None], length)[0]
            context = softmax(logits, allowed) @ v
            out[start : start + length, head * dim : (head + 1) * dim] = context
        start += length
    return out


# ---- pooling


def _pool_row(tokens: F64, mode: str, skip: int) -> F64:
    kept = tokens[skip:]
    position = np.arange(skip, len(tokens), dtype=np.float64)[:, None]
    return {
        "cls": lambda: kept[0],
        "last": lambda: kept[-1],
        "max": lambda: kept.max(axis=0),
        "mean": lambda: kept.sum(axis=0) / len(kept),
        "mean_sqrt_len": lambda: kept.sum(axis=0) / math.sqrt(len(kept)),
        "weighted_mean": lambda: (kept * (position + 1)).sum(axis=0) / (position + 1).sum(),
    }[mode]()


def pool(
    x: Any, seq_lengths: Sequence[int], mode: str, pool_skip: Sequence[int] | None = None
) -> F64:
    """One vector a sequence, (T, E) -> (B, E), the first `pool_skip` tokens of a row left out."""
    rows = np.split(wide(x), np.cumsum(seq_lengths)[:-1])
    skips = [0] * len(rows) if pool_skip is None else pool_skip
    return np.stack([_pool_row(row, mode, skip) for row, skip in zip(rows, skips, strict=True)])


# ---- how near is near enough


def rounding_error(want: Any, dtype: DTypeLike) -> float:
    """The largest error that merely storing the exact answer in `dtype` makes."""
    want = wide(want)
    return float(np.abs(wide(want.astype(dtype)) - want).max(initial=0.0))


def error_budget(
    want: Any, dtype: DTypeLike, terms: int = 1, *, scale: float | None = None
) -> float:
    """The largest error that float32 arithmetic and one rounding to `dtype` may make.

    Let d bound the error of the float32 result g before it is stored. Storing rounds to nearest, so
    |stored(g) - want| <= |stored(want) - g| + d <= |stored(want) - want| + 2 d: the error of merely
    rounding the exact answer (allowed twice, for the inputs of a last step that were themselves
    rounded) and 2 d. `terms` float32 operations that each err by at most 2^-24 of `scale`, with
    signs that do not conspire, add up to d = 2^-24 * sqrt(terms) * scale. `scale` is the size of
    what is added up; it is the largest |want| unless the summands cancel, where the caller gives
    it (`gemm_scale`).
    """
    size = float(np.abs(wide(want)).max(initial=0.0)) if scale is None else scale
    noise = FLOAT32_ROUNDING * math.sqrt(terms) * size
    return 2 * rounding_error(want, dtype) + 2 * noise


def max_difference(got: Any, want: Any) -> float:
    """The largest |got - want| of two host arrays of one shape; NaN where either has a NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"got shape {got.shape}, wanted {want.shape}"
    return float(np.abs(wide(got) - wide(want)).max(initial=0.0))


def max_error(driver: Any, got: Any, want: Any) -> float:
    """The largest |got - want| of a tensor on the device against a host array."""
    return max_difference(driver.to_host(got), want)
