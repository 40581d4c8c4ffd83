"""Nomic BERT from its formulas in float64, for what `transformers` leaves out of its own class.

Its class has no biases and rotates the whole head; the model's remote code has both options. Where
neither is used the two agree, which `make_families` checks before it trusts this one.

    h = norm1(x + attention(x)),  x' = norm2(h + fc2(fc11(h) * act(fc12(h))))
"""

from __future__ import annotations

from math import erf

import numpy as np
from families.nomic_bert import TinyNomicBert

ACTS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5)),
}


def hidden_states(spec: TinyNomicBert, ids: np.ndarray) -> np.ndarray:
    """The last hidden states of one row: (S,) ids -> (S, E) float32."""
    w = {name: values.astype(np.float64) for name, values in spec.weights().items()}
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x, w, "embeddings.LayerNorm", spec.eps)
    for i in range(spec.layers):
        layer = f"layers.{i}"
        context = _attention(x, w, f"{layer}.self_attn", spec)
        x = _norm(x + context, w, f"{layer}.post_attention_layernorm", spec.eps)
        gate = ACTS[spec.act](_linear(x, w, f"{layer}.mlp.gate_proj"))
        h = _linear(_linear(x, w, f"{layer}.mlp.up_proj") * gate, w, f"{layer}.mlp.down_proj")
        x = _norm(x + h, w, f"{layer}.post_mlp_layernorm", spec.eps)
    return x.astype(np.float32)


def _attention(
    x: np.ndarray, w: dict[str, np.ndarray], name: str, spec: TinyNomicBert
) -> np.ndarray:
    length, dim = len(x), spec.hidden // spec.heads
    q, k, v = (
        _linear(x, w, f"{name}.{part}_proj").reshape(length, spec.heads, dim).swapaxes(0, 1)
        for part in "qkv"
    )  # (N, S, D)
    q, k = _rotated(q, spec), _rotated(k, spec)
    scores = q @ k.swapaxes(1, 2) / dim**0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    context = (weights @ v).swapaxes(0, 1).reshape(length, spec.hidden)
    return _linear(context, w, f"{name}.o_proj")


def _rotated(heads: np.ndarray, spec: TinyNomicBert) -> np.ndarray:
    """The first part of each head turned by position (Su et al. 2021), halves paired."""
    _, length, dim = heads.shape
    turned = int(dim * spec.fraction)
    base = spec.base
    if spec.factor and length > spec.trained:
        grown = spec.factor * length / spec.trained - (spec.factor - 1)
        base *= grown ** (turned / (turned - 2))
    angles = np.arange(length)[:, None] * base ** (-np.arange(0, turned, 2) / turned)
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = heads[..., : turned // 2], heads[..., turned // 2 : turned]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, heads[..., turned:]], axis=-1)


def _linear(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def _norm(x: np.ndarray, w: dict[str, np.ndarray], name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return unit * w[f"{name}.weight"] + w[f"{name}.bias"]
