"""Primitives of padded multi-head attention, dense and banded, of rotation and of pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from drivers.types import T


class AttentionSteps(Protocol[T]):
    """The steps of padded multi-head attention (Vaswani et al. 2017)."""

    def build_attn_mask(self, int_mask: T, *, out: T | None = None) -> T:
        """(B, S) int32 of 0 and 1 -> (B, S) float32: 0 where 1, MASK_VALUE where 0."""
        ...

    def qkv_split(
        self,
        qkv: T,
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        out: tuple[T, T, T] | None = None,
    ) -> tuple[T, T, T]:
        """(B, S, (N + 2 KV) D), q before k before v, -> q (B * N, S, D), k and v (B * KV, S, D).

        kv_heads is num_heads, and head_dim follows from the width, where they are None.
        """
        ...

    def fused_pad_qkv_split(
        self,
        flat: T,
        *,
        seq_lengths: Sequence[int],
        max_seq: int,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        out: tuple[T, T, T] | None = None,
    ) -> tuple[T, T, T]:
        """qkv_split(pad_to_batch(flat)) in one pass: (T, (N + 2 KV) D) -> three of (·, S, D)."""
        ...

    def fused_scale_mask_softmax(
        self,
        scores: T,
        mask: T,
        *,
        num_heads: int,
        scale: float,
        window_left: int | None = None,
        window_right: int | None = None,
        position_bias: T | None = None,
        out: T | None = None,
    ) -> T:
        """softmax(scores * scale + mask + bias) over keys: scores (B * N, S, S), mask (B, S).

        Keys more than window_left before the query, or window_right after it, are masked; 0 for
        window_right is causal attention, None means no limit. position_bias (N, 2 P - 1), P >= S:
        the entry key - query + P - 1 is added to the scaled score, by head. `out` may be `scores`.
        """
        ...

    def fused_scale_mask_softmax_windowed(
        self,
        scores: T,
        mask: T,
        *,
        num_heads: int,
        scale: float,
        window: int,
        out: T | None = None,
    ) -> T:
        """`fused_scale_mask_softmax` over the keys with |query - key| <= window // 2."""
        ...

    def attn_reshape(self, heads: T, *, num_heads: int, out: T | None = None) -> T:
        """(B * N, S, D) -> (B, S, N D), each token's heads side by side."""
        ...

    def split_heads(self, x: T, *, num_heads: int, out: T | None = None) -> T:
        """(B, S, N D) -> (B * N, S, D): undoes `attn_reshape`."""
        ...

    def matrix_at(self, x: T, index: int) -> T:
        """x[index] of (G, m, n) as (m, n): a view, so an `out` that is one writes into `x`."""
        ...

    def causal_softmax(self, scores: T, *, scale: float, out: T | None = None) -> T:
        """softmax(scores * scale) of row i over keys 0 to i: scores (S, S) or (G, S, S).

        A later key has weight exactly 0 and whatever its score is, NaN too, leaves no trace. Scores
        of any finite size give finite weights. `out` may be `scores`.
        """
        ...

    def fused_reshape_unpad(
        self, heads: T, *, seq_lengths: Sequence[int], num_heads: int, out: T | None = None
    ) -> T:
        """unpad_from_batch(attn_reshape(heads)) in one pass: (B * N, S, D) -> (T, N D)."""
        ...


class Banded(Protocol[T]):
    """Attention within a band: column w of W stands for the key at query - W // 2 + w."""

    def banded_qk(self, q: T, k: T, *, window: int, out: T | None = None) -> T:
        """q (B * N, S, D), k (B * KV, S, D) -> scores (B * N, S, W), W = window.

        A key outside 0 .. S - 1 scores -inf. Key head h serves the query heads of its group, as in
        `gemm_batched`.
        """
        ...

    def banded_softmax(
        self,
        scores: T,
        *,
        scale: float,
        seq_lengths: Sequence[int] | None = None,
        out: T | None = None,
    ) -> T:
        """softmax(scores * scale) over the band: (rows, W), or (B * N, S, W), in place of the mask.

        A score of -inf is masked, whatever the scale; with seq_lengths, so is a key at or behind
        its sequence's length. `out` may be `scores`.
        """
        ...

    def banded_sv(self, weights: T, v: T, *, out: T | None = None) -> T:
        """weights (B * N, S, W), v (B * KV, S, D) -> (B * N, S, D), in the dtype of `v`.

        The sum over the band's keys that exist; weights of the others are not read.
        """
        ...


class Rotary(Protocol[T]):
    """Rotary position embedding (Su et al. 2021)."""

    def apply_rope(self, x: T, cos: T, sin: T, *, out: T | None = None) -> T:
        """Rotate the first R dimensions of heads x (B * N, S, D); the others pass.

        Half-split pairs: x[j] and x[j + R / 2] become x[j] cos - x[j + R / 2] sin and
        x[j + R / 2] cos + x[j] sin, with row p of cos and sin for position p. cos and sin are
        float32, (P, R / 2) or, a table a sequence, (B, P, R / 2), P >= S. `out` may be `x`.
        """
        ...


class Pooling(Protocol[T]):
    """From the tokens of a padded batch to one vector a sequence, always float32."""

    def cls_pool(self, hidden: T, *, out: T | None = None) -> T:
        """The first token: (B, S, E) -> (B, E) float32."""
        ...

    def mean_pool(self, hidden: T, mask: T, *, out: T | None = None) -> T:
        """Mean weighted by `mask` (B, S) float32: (B, S, E) -> (B, E) float32.

        A row without weight gives zeros.
        """
        ...

    def max_pool(self, hidden: T, mask: T, *, out: T | None = None) -> T:
        """Largest value of the tokens whose mask is not 0: (B, S, E) -> (B, E) float32.

        A row without weight gives zeros.
        """
        ...
