"""What gpu.py measures, and how large: the shapes of known models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model_folders import MINILM, RANDOM

from drivers.types import Activation


class Layer(NamedTuple):
    """A linear layer of a model: (T, depth) -> (T, cols), or (T, 2 cols) -> (T, cols) if gated."""

    model: str
    part: str
    depth: int
    cols: int
    act: Activation | None = None
    residual: bool = False
    bias: bool = True
    gated: bool = False


def bert_layers(model: str, hidden: int, inner: int) -> tuple[Layer, ...]:
    return (
        Layer(model, "qkv", hidden, 3 * hidden),
        Layer(model, "attention out", hidden, hidden, residual=True),
        Layer(model, "mlp in, product alone", hidden, inner),
        Layer(model, "mlp in", hidden, inner, act="gelu"),
        Layer(model, "mlp out", inner, hidden, residual=True),
    )


def modern_layers(model: str, hidden: int, inner: int) -> tuple[Layer, ...]:
    return (
        Layer(model, "qkv", hidden, 3 * hidden, bias=False),
        Layer(model, "attention out", hidden, hidden, residual=True, bias=False),
        Layer(model, "mlp in, product alone", hidden, 2 * inner, bias=False),
        Layer(model, "mlp in", hidden, inner, act="gelu", bias=False, gated=True),
        Layer(model, "mlp out", inner, hidden, residual=True, bias=False),
    )


@dataclass(frozen=True)
class Sizes:
    """copies: bytes. products: rows, depth and columns of those that the ceiling is the best of.

    tokens: of a layer's product and of attention. row_tokens: of norms and look-ups, more than the
    caches hold. heads: width of all heads together. models: by the name that folder_of knows.
    sequences, length: of the uniform texts, whose ids lie in a range without special ones.
    checked_texts: those that NumPy embeds too. seconds: of one measurement on the device, about.
    """

    copies: tuple[int, ...] = (1 << 28, 1 << 30)
    products: tuple[tuple[int, int, int], ...] = ((8192, 8192, 8192), (16384, 8192, 8192))
    tokens: int = 16384
    layers: tuple[Layer, ...] = (
        *bert_layers("MiniLM", 384, 1536),
        *bert_layers("BGE-base", 768, 3072),
        *modern_layers("ModernBERT-base", 768, 1152),
    )
    lengths: tuple[int, ...] = (128, 512, 2048)
    head_dims: tuple[int, ...] = (32, 64, 128)
    heads: int = 768
    window: int = 64
    row_tokens: int = 1 << 18
    widths: tuple[int, ...] = (384, 768)
    vocab: int = 30522
    models: tuple[str, ...] = (MINILM, f"{RANDOM}bge-base", f"{RANDOM}modernbert-base")
    sequences: int = 1024
    length: int = 512
    ids: tuple[int, int] = (1000, 30000)
    checked_texts: int = 8
    batch_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)  # of a peer, to choose from
    seconds: float = 0.02
