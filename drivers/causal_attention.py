"""Causal multi-head attention over padded batches: five functions, on any driver.

    out[b, i, n] = sum over j <= i of w[j] v[b, j, m]
    w = softmax over j <= i of (q[b, i, n] . k[b, j, m] * scale),  m = n * KV // N

Two forms of the whole, head by head and in one dispatch a product, and the steps they are made of.
What the functions they are named after leave open is decided here:

- A head has its own width D: N * D need not be the hidden size. N / KV query heads in a row share
  one head of keys and values.
- Tensors are (B, S, heads * D). Padding stands behind a sequence's tokens, so no token sees it.
- Storage is float32 or float16. Scores and weights are float32 in both; a head's context is
  rounded to the storage type once.
- The scale multiplies the scores inside the softmax, in float32: an unscaled product may pass what
  float16 holds.
- A later position has weight exactly 0. Its values change no bit of an earlier output while they
  are finite; 0 times an infinity or NaN is NaN here as in every product.
- Each function takes `out=`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from drivers import shapes
from drivers.errors import DtypeError, ShapeError
from drivers.protocol import Driver
from drivers.types import T

PLANS_KEPT = 4
"""How many shapes' workspaces stay on the device; the one unused for longest goes first."""


@dataclass(frozen=True)
class CausalConfig:
    """Heads of one attention layer: N query heads, KV heads of keys and values, D wide.

    scale: what the scores are multiplied by; D ** -0.5 if None. Raises ShapeError where KV does not
    divide N, or a size is below 1.
    """

    num_heads: int
    kv_heads: int
    head_dim: int
    scale: float | None = None

    def __post_init__(self) -> None:
        if min(self.num_heads, self.kv_heads, self.head_dim) < 1 or self.num_heads % self.kv_heads:
            raise ShapeError(
                f"causal attention: {self.kv_heads} kv heads do not divide {self.num_heads} heads "
                f"of {self.head_dim}"
            )

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.num_heads // self.kv_heads

    @property
    def score_scale(self) -> float:
        """What the scores are multiplied by."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True)
class Plan(Generic[T]):
    """The workspace of one shape, written anew by every call."""

    scores: T  # (B * N, S, S) float32
    context: T  # (B * N, S, D) in the storage type


class PlanCache(Generic[T]):
    """The plans last used, by (B, S) and storage type. `hits` and `misses` count the look-ups."""

    def __init__(self, driver: Driver[T], config: CausalConfig) -> None:
        self.hits = 0
        self.misses = 0
        self._driver = driver
        self._config = config
        self._plans: OrderedDict[tuple[int, int, np.dtype[Any]], Plan[T]] = OrderedDict()

    def get(self, batch: int, seq: int, dtype: np.dtype[Any]) -> Plan[T]:
        """The plan of this shape, made where there is none."""
        key = (batch, seq, dtype)
        if key in self._plans:
            self.hits += 1
            self._plans.move_to_end(key)
            return self._plans[key]
        self.misses += 1
        if len(self._plans) == PLANS_KEPT:
            self._plans.popitem(last=False)
        groups = batch * self._config.num_heads
        self._plans[key] = Plan(
            scores=self._driver.alloc_zeros((groups, seq, seq), np.float32),
            context=self._driver.alloc_zeros((groups, seq, self._config.head_dim), dtype),
        )
        return self._plans[key]


class CausalAttention(Generic[T]):
    """Causal attention of one layer shape on one driver, which runs one call at a time.

    `plan` is the cache of workspaces. q is (B, S, N * D); k and v are (B, S, KV * D) in q's dtype.
    """

    def __init__(self, driver: Driver[T], config: CausalConfig) -> None:
        self.driver = driver
        self.config = config
        self.plan: PlanCache[T] = PlanCache(driver, config)

    def parallel_multihead_attention_gpu_cached(
        self, q: T, k: T, v: T, *, out: T | None = None
    ) -> T:
        """Head by head, two products each, in a cached plan -> (B, S, N * D).

        `out` may be `q`. Raises ShapeError or DtypeError where q, k and v do not fit the config.
        """
        plan = self._plan_for("parallel_multihead_attention_gpu_cached", q, k, v)
        d, config = self.driver, self.config
        q = d.split_heads(q, num_heads=config.num_heads)  # (B * N, S, D)
        k = d.split_heads(k, num_heads=config.kv_heads)  # (B * KV, S, D)
        v = d.split_heads(v, num_heads=config.kv_heads)  # (B * KV, S, D)
        for head in range(q.shape[0]):
            keys = d.matrix_at(k, head // config.heads_per_kv)  # (S, D)
            scores = d.matrix_at(plan.scores, head)  # (S, S)
            d.gemm(d.matrix_at(q, head), keys, transpose_b=True, out=scores)
        weights = self.batched_causal_softmax(
            plan.scores, scale=config.score_scale, out=plan.scores
        )  # (B * N, S, S)
        for head in range(q.shape[0]):
            values = d.matrix_at(v, head // config.heads_per_kv)  # (S, D)
            context = d.matrix_at(plan.context, head)  # (S, D)
            d.gemm(d.matrix_at(weights, head), values, out=context)
        return d.attn_reshape(plan.context, num_heads=config.num_heads, out=out)

    def batched_gemm_single_dispatch(
        self, a: T, b: T, *, transpose_b: bool = False, out: T | None = None
    ) -> T:
        """All products of a batch in one dispatch, whatever its size.

        (G, m, k) and (G, k, n), or (G, n, k) with `transpose_b`, -> (G, m, n) in a's dtype. `b` may
        have G / r groups: each serves r groups of `a` in a row.
        """
        return self.driver.gemm_batched(a, b, transpose_b=transpose_b, out=out)

    def batched_causal_softmax(self, scores: T, *, scale: float = 1.0, out: T | None = None) -> T:
        """softmax(scores * scale) over keys 0 to i of row i, a dispatch a head: (G, S, S).

        Later keys have weight 0. `out` may be `scores`.
        """
        shapes.require("batched_causal_softmax", "scores", scores.shape, (None, None, None))
        out = self.driver.alloc_zeros(scores.shape, scores.dtype) if out is None else out
        for head in range(scores.shape[0]):
            one = self.driver.matrix_at(scores, head)  # (S, S)
            self.driver.causal_softmax(one, scale=scale, out=self.driver.matrix_at(out, head))
        return out

    def batched_causal_softmax_trueno(
        self, scores: T, *, scale: float = 1.0, out: T | None = None
    ) -> T:
        """`batched_causal_softmax` vectorised over all heads and rows, in one dispatch."""
        shapes.require("batched_causal_softmax_trueno", "scores", scores.shape, (None, None, None))
        return self.driver.causal_softmax(scores, scale=scale, out=out)

    def single_dispatch_multihead_attention(self, q: T, k: T, v: T, *, out: T | None = None) -> T:
        """One dispatch for all heads' scores, one for their softmax, one for their context.

        -> (B, S, N * D). `out` may be `q`. Raises ShapeError or DtypeError where q, k and v do not
        fit the config.
        """
        plan = self._plan_for("single_dispatch_multihead_attention", q, k, v)
        d, config = self.driver, self.config
        q = d.split_heads(q, num_heads=config.num_heads)  # (B * N, S, D)
        k = d.split_heads(k, num_heads=config.kv_heads)  # (B * KV, S, D)
        v = d.split_heads(v, num_heads=config.kv_heads)  # (B * KV, S, D)
        scores = self.batched_gemm_single_dispatch(
            q, k, transpose_b=True, out=plan.scores
        )  # (B * N, S, S)
        weights = self.batched_causal_softmax_trueno(scores, scale=config.score_scale, out=scores)
        context = self.batched_gemm_single_dispatch(weights, v, out=plan.context)  # (B * N, S, D)
        return d.attn_reshape(context, num_heads=config.num_heads, out=out)

    def _plan_for(self, op: str, q: T, k: T, v: T) -> Plan[T]:
        """The plan of q's shape, once q, k and v have been checked."""
        config = self.config
        shapes.require(op, "q", q.shape, (None, None, config.num_heads * config.head_dim))
        batch, seq, _ = q.shape
        for name, x in (("k", k), ("v", v)):
            shapes.require(op, name, x.shape, (batch, seq, config.kv_heads * config.head_dim))
            if x.dtype != q.dtype:
                raise DtypeError(f"{op}: {name} has dtype {x.dtype}, q has {q.dtype}")
        if q.dtype not in self.driver.dtypes:
            raise DtypeError(f"{op}: got dtype {q.dtype}, wanted float32 or float16")
        return self.plan.get(batch, seq, q.dtype)
