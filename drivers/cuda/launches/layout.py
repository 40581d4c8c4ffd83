"""Launches of kernels/layout.cu."""

from __future__ import annotations

from drivers.cuda.launch import Launch
from drivers.cuda.launches.chunks import DEFINES as CHUNK_DEFINES
from drivers.cuda.launches.chunks import chunks, threads
from drivers.types import MASK_VALUE

KERNELS = ("split_heads", "join_heads", "build_attn_mask")
DEFINES = (*CHUNK_DEFINES, f"MASK_VALUE={MASK_VALUE}f")


def split_heads(*, batch: int, seq: int, heads: int, head_dim: int) -> Launch:
    """All heads, of q, k and v, of the tokens of a padded batch: (B * S, heads * D)."""
    return chunks("split_heads", batch * seq * heads, head_dim)


def join_heads(*, batch: int, seq: int, heads: int, head_dim: int) -> Launch:
    """Heads (B * heads, S, D) to tokens."""
    return chunks("join_heads", batch * seq * heads, head_dim)


def build_attn_mask(*, count: int) -> Launch:
    """A float mask of so many values."""
    return threads("build_attn_mask", count)
