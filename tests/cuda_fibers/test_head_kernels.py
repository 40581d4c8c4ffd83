"""Norm and rotation of the heads of q and k against float64, and the mistakes that must show."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drivers.cuda.launches import heads as launches
from tests import oracle
from tests.cuda_fibers.device import FiberDevice
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, ends, shows
from tests.ops.test_rope import tables

LENGTHS = (7, 1, 33)
EPS = 1e-3
TYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16)]


class Case:
    """Random rows, norm weights and rotary tables of one shape, and their answer in float64."""

    def __init__(self, rng, dtype, dim, *, num=3, kv=2, pairs=None, norm=True, by_sequence=False):
        self.dim, self.num, self.kv = dim, num, kv
        self.pairs = dim // 2 if pairs is None else pairs
        width = (num + 2 * kv) * dim
        self.qkv = rng.standard_normal((sum(LENGTHS), width)).astype(dtype)
        self.weights = list((rng.standard_normal((2, dim)) + 1).astype(dtype)) if norm else None
        self.tables = None
        if self.pairs and by_sequence:
            each = [tables(35, 2 * self.pairs, 10.0 ** (2 + row)) for row in range(len(LENGTHS))]
            self.tables = [np.stack(table) for table in zip(*each, strict=True)]
        elif self.pairs:
            self.tables = tables(35, 2 * self.pairs)

    def want(self):
        """(T, (N + KV) D)."""
        out = []
        for row, rows in enumerate(np.split(oracle.wide(self.qkv), np.cumsum(LENGTHS)[:-1])):
            x = rows.reshape(len(rows), -1, self.dim).transpose(1, 0, 2)  # (N + 2 KV, S, D)
            q, k = x[: self.num], x[self.num : self.num + self.kv]
            if self.weights is not None:
                q, k = (
                    oracle.rms_norm(h, w, eps=EPS)
                    for h, w in zip((q, k), self.weights, strict=True)
                )
            if self.tables is not None:
                own = [t if t.ndim == 2 else t[row] for t in self.tables]
                q, k = oracle.rotate(q, *own), oracle.rotate(k, *own)
            out.append(np.concatenate([q, k]).transpose(1, 0, 2).reshape(len(rows), -1))
        return np.concatenate(out)

    def budget(self, want):
        size = float(np.abs(oracle.wide(self.qkv)).max())
        if self.weights is not None:
            size *= float(max(np.abs(oracle.wide(w)).max() for w in self.weights)) * 2
        return oracle.error_budget(want, self.qkv.dtype, terms=self.dim + 16, scale=2 * size)

    def run(self, device, *, in_place=False):
        """The rows that the kernel writes: of q and k alone, or in place of all."""
        launch = launches.norm_and_rotate(tokens=len(self.qkv), head_dim=self.dim, pairs=self.pairs)
        qkv = device.upload(self.qkv)
        heads = self.num + (2 if in_place else 1) * self.kv
        out = qkv if in_place else device.new((len(qkv), heads * self.dim), qkv.dtype)
        q, k = (None, None) if self.weights is None else map(device.upload, self.weights)
        cos, sin = (None, None) if self.tables is None else map(device.upload, self.tables)
        positions = 0 if cos is None else cos.shape[-2]
        count = len(LENGTHS) if cos is not None and cos.ndim == 3 else 1
        cu_seqlens = device.upload(np.cumsum([0, *LENGTHS]).astype(np.int32))
        sizes = (len(LENGTHS), count, positions, self.pairs, self.num, self.kv, self.dim, heads)
        arguments = (out, qkv, q, k, cos, sin, cu_seqlens, *map(np.int32, sizes), np.float32(EPS))
        device.launch("heads", qkv.dtype, launch, arguments)
        return out


def check(case, order="warp_greedy"):
    want = case.want()
    got = case.run(FiberDevice(order))
    assert got.dtype == case.qkv.dtype
    assert oracle.max_difference(got, want) <= case.budget(want)
    return got


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("dim", [16, 32, 48, 64, 96, 128, 256, 2, 7, 31, 33, 40, 288])
def test_every_head_size_normed_rotated_and_both(rng, dtype, dim):
    for norm, pairs in [(True, None), (False, None), (True, 0)]:
        check(Case(rng, dtype, dim, norm=norm, pairs=pairs))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("dim", "pairs"), [(64, 16), (64, 1), (7, 2), (128, 60), (256, 64)])
def test_dimensions_behind_the_rotated_ones_are_normed_alone(rng, dtype, dim, pairs):
    check(Case(rng, dtype, dim, pairs=pairs))
    case = Case(rng, dtype, dim, pairs=pairs, norm=False)
    got = check(case).reshape(len(case.qkv), 5, dim)
    given = case.qkv.reshape(len(case.qkv), 7, dim)
    assert np.array_equal(got[..., 2 * pairs :], given[:, :5, 2 * pairs :])


@pytest.mark.parametrize("dim", [32, 31])
def test_each_sequence_may_have_its_own_table(rng, dtype, dim):
    check(Case(rng, dtype, dim, by_sequence=True, pairs=dim // 2))


@pytest.mark.parametrize(("num", "kv"), [(1, 1), (16, 1), (40, 40), (5, 5)])
def test_more_heads_than_a_block_takes_at_once(rng, dtype, num, kv):
    for dim in (256, 31):
        check(Case(rng, dtype, dim, num=num, kv=kv))


@pytest.mark.parametrize("dim", [64, 31])
def test_in_place_the_values_stay_as_they_are(rng, dtype, dim):
    case = Case(rng, dtype, dim)
    apart = case.run(FiberDevice("shuffled"))
    together = case.run(FiberDevice("shuffled"), in_place=True)
    assert np.array_equal(together[:, : 5 * dim], apart)
    assert np.array_equal(together[:, 5 * dim :], case.qkv[:, 5 * dim :])


@pytest.mark.parametrize("dim", [64, 31])
def test_the_order_of_the_threads_changes_no_bit(rng, dtype, dim):
    case = Case(rng, dtype, dim)
    answers = [case.run(FiberDevice(order)) for order in ORDERS]
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("dim", [64, 31])
def test_nan_stays_in_its_head(rng, dtype, dim):
    case = Case(rng, dtype, dim)
    clean = case.run(FiberDevice("shuffled"))
    case.qkv[8, dim : 2 * dim] = np.nan
    got = case.run(FiberDevice("shuffled"))
    bad = np.zeros(got.shape, bool)
    bad[8, dim : 2 * dim] = True
    assert np.isnan(got[bad]).all()
    assert np.array_equal(got[~bad], clean[~bad])


# ---- planted mistakes, which must show with heads of 64 (in pieces) or of 31 (a warp each)

MISTAKES = {
    "positions count from 1": ("token - cu_seqlens[sequence]", "token - cu_seqlens[sequence] + 1"),
    "the sequence before": ("cu_seqlens[middle] <= token", "cu_seqlens[middle] < token"),
    "one table for all": ("tables == 1 ? 0 : sequence", "0"),
    "a wrong sign": ("__fsub_rn(", "__fadd_rn("),
    "half of a pair stays": ("y = __fadd_rn(", "__fadd_rn("),
    "half of a pair not normed": ("= normed(j), y", "= widen(from[j]), y"),
    "the weights of k on q": ("= head < num_heads ? q_weight : k_weight", "= k_weight"),
    "the weights of q on k, in pieces": ("(head < num_heads ? q_weight : k_weight) + d",
                                         "q_weight + d"),
    "no eps": ("warp_sum(squares) / head_dim + eps", "warp_sum(squares) / head_dim"),
    "no eps, in pieces": ("squares / head_dim + eps);\n            if",
                          "squares / head_dim);\n            if"),
    "half of the sum": ("offset = GROUP / 2", "offset = GROUP / 4"),
    "sum of a lane alone": ("warp_sum(squares) /", "squares /"),
    "what is not rotated left out": ("d = 2 * pairs + lane", "d = 2 * pairs + 1 + lane"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_shows(rng, name):
    edit = Edit("heads", *MISTAKES[name])

    def shows_by(case):
        want = case.want()

        def error(order):
            return oracle.max_difference(case.run(FiberDevice(order, edit)), want)

        return shows(error, 10 * case.budget(want), ["warp_greedy"])

    assert any(shows_by(Case(rng, np.float32, dim, by_sequence=True)) for dim in (64, 31))


def test_a_position_among_all_tokens_leaves_the_table(rng):
    edit = Edit("heads", "token - cu_seqlens[sequence]", "token")
    for case in (Case(rng, np.float32, dim) for dim in (64, 31)):
        ends(
            lambda order, case=case: case.run(FiberDevice(order, edit)),
            "norm_and_rotate_.*",
            "touches memory",
            ["warp_greedy"],
        )
