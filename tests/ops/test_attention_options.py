"""`attention` with grouped heads, rotation, q/k norm, windows, causality and a position bias."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import Encoding, NullDriver, ShapeError
from drivers.types import QkNorm, Rope
from tests import oracle
from tests.ops.test_rope import tables

LENGTHS = (7, 1, 33)
OPTIONS = {
    "grouped": {"heads": 6, "kv": 2},
    "one key head": {"heads": 4, "kv": 1},
    "rope": {"rope": 1.0},
    "partial rope": {"rope": 0.5},
    "rope by sequence": {"rope": 1.0, "by_sequence": True},
    "qk norm": {"qk_norm": True},
    "causal": {"causal": True},
    "causal, left": {"causal": True, "left": 4},
    "left": {"left": 3},
    "right": {"right": 2},
    "left and right": {"left": 5, "right": 1},
    "narrow window": {"left": 4, "right": 4},
    "widest band": {"left": 7, "right": 7},
    "window too wide for a band": {"left": 8, "right": 8},
    "itself alone": {"left": 0, "right": 0},
    "bias": {"bias": 0},
    "longer bias": {"bias": 5},
    "bias in a window": {"bias": 0, "left": 3, "right": 3},
    "scale": {"scale": 0.7},
    "band of grouped heads": {"heads": 6, "kv": 3, "left": 2, "right": 2, "rope": 1.0},
    "all": {
        "heads": 6,
        "kv": 2,
        "rope": 0.5,
        "qk_norm": True,
        "causal": True,
        "left": 9,
        "bias": 2,
        "scale": 0.4,
    },
}


def batch_of(driver, lengths):
    return driver.prepare_batch_unpadded([Encoding(np.ones(n, np.int32)) for n in lengths])


class Case:
    """Random inputs of one set of options, for a driver and for the oracle."""

    def __init__(
        self,
        rng,
        dtype,
        lengths,
        dim,
        *,
        heads=3,
        kv=None,
        rope=0.0,
        by_sequence=False,
        qk_norm=False,
        causal=False,
        left=None,
        right=None,
        bias=None,
        scale=None,
    ):
        shared = heads if kv is None else kv
        self.lengths, self.dtype, self.dim, self.heads = lengths, dtype, dim, heads
        width = (heads + 2 * shared) * dim
        self.qkv = rng.standard_normal((sum(lengths), width)).astype(dtype)
        self.plain = {
            "num_heads": heads,
            "kv_heads": kv,
            "scale": scale,
            "causal": causal,
            "window_left": left,
            "window_right": right,
        }
        longest, rotary = max(lengths), 2 * max(1, int(rope * dim / 2))
        self.rope = self.qk_norm = self.bias = None
        if rope and by_sequence:
            each = [tables(longest, rotary, 10.0 ** (2 + row)) for row in range(len(lengths))]
            self.rope = tuple(np.stack(table) for table in zip(*each))
        elif rope:
            self.rope = tables(longest + 2, rotary)
        if qk_norm:
            self.qk_norm = *(rng.standard_normal((2, dim)) + 1).astype(dtype), 1e-6
        if bias is not None:
            size = (heads, 2 * (longest + bias) - 1)
            self.bias = rng.standard_normal(size).astype(np.float32)

    def options(self, driver):
        """The keyword arguments of `Driver.attention`."""
        up = driver.from_host
        return self.plain | {
            "rope": None if self.rope is None else Rope(*map(up, self.rope)),
            "qk_norm": None
            if self.qk_norm is None
            else QkNorm(*map(up, self.qk_norm[:2]), eps=self.qk_norm[2]),
            "position_bias": None if self.bias is None else up(self.bias),
        }

    def run(self, driver):
        tensor = driver.from_host(self.qkv.copy())
        return driver.attention(tensor, batch_of(driver, self.lengths), **self.options(driver))

    def want(self):
        return oracle.attention(
            self.qkv,
            self.lengths,
            rope=self.rope,
            qk_norm=self.qk_norm,
            position_bias=self.bias,
            **self.plain,
        )

    def budget(self, want):
        """A logit's error is that of its stored q and k, norm and rotation stored on the way.

        A weight then errs by its own share times exp(2 e) - 1, as in the plain attention's budget.
        """
        by_head = oracle.wide(self.qkv).reshape(len(self.qkv), -1, self.dim)
        shared = (by_head.shape[1] - self.heads) // 2
        q, k, v = np.split(by_head, [self.heads, self.heads + shared], axis=1)
        if self.qk_norm is not None:
            q, k = (
                oracle.rms_norm(x, w, eps=self.qk_norm[2]) for x, w in zip((q, k), self.qk_norm[:2])
            )
        scale = self.dim**-0.5 if self.plain["scale"] is None else self.plain["scale"]
        lengths_of = [float(np.sqrt((x**2).sum(axis=-1)).max()) for x in (q, k)]
        size = abs(scale) * math.prod(lengths_of)  # no logit is larger (Cauchy and Schwarz)
        stored = 2 * (self.qk_norm is not None) + 2 * (self.rope is not None)
        unit = np.finfo(self.dtype).eps / 2
        logit = stored * unit * size / math.sqrt(self.dim)
        logit += oracle.FLOAT32_ROUNDING * (size + (0 if self.bias is None else 8))
        largest = float(np.abs(v).max())
        weights = float(np.expm1(2 * logit)) + unit
        terms = max(self.lengths) + self.dim + 8
        return largest * weights + oracle.error_budget(want, self.dtype, terms=terms, scale=largest)


@pytest.mark.parametrize("dim", [2, 7, 32])
@pytest.mark.parametrize("name", OPTIONS)
def test_attention_with_options_matches_oracle(driver, rng, dtype, name, dim):
    case = Case(rng, dtype, LENGTHS, dim, **OPTIONS[name])
    got, want = case.run(driver), case.want()
    assert got.dtype == dtype
    assert got.shape == (sum(LENGTHS), case.heads * dim)
    assert oracle.max_error(driver, got, want) <= case.budget(want)


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_with_options_runs_on_shapes_alone(rng, dtype, name):
    case = Case(rng, dtype, LENGTHS, 32, **OPTIONS[name])
    null = NullDriver()
    got = case.run(null)
    assert got.dtype == dtype
    assert got.shape == (sum(LENGTHS), case.heads * 32)
    seq = max(LENGTHS)
    reach = 2 * case.plain["window_left"] + 1 if null.tally.calls_total["banded_qk"] else seq
    assert null.tally.flops_total == 4 * len(LENGTHS) * case.heads * seq * reach * 32


@pytest.mark.parametrize("name", OPTIONS)
def test_the_budget_is_far_below_what_an_option_changes(driver, rng, name):
    """In float32 the options' answers lie at least 100 budgets from the plain answer."""
    case = Case(rng, np.dtype(np.float32), LENGTHS, 32, **OPTIONS[name])
    want = case.want()
    qkv, key_heads = case.qkv, case.plain["kv_heads"]
    if name in ("grouped", "one key head"):  # nothing but the grouping: turn the heads behind q
        heads = case.qkv.reshape(len(want), -1, 32)
        behind = np.roll(heads[:, case.heads :], 1, axis=1)
        qkv = np.concatenate([heads[:, : case.heads], behind], axis=1).reshape(qkv.shape)
    plain = oracle.attention(qkv, LENGTHS, num_heads=case.heads, kv_heads=key_heads)
    assert oracle.max_difference(plain, want) > 100 * case.budget(want)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_row_attends_as_it_does_alone(driver, rng, dtype, name):
    case = Case(rng, dtype, LENGTHS, 8, **OPTIONS[name])
    together = driver.to_host(case.run(driver))
    start = 0
    for row, length in enumerate(LENGTHS):
        alone = Case(rng, dtype, (length,), 8, **OPTIONS[name])
        alone.qkv = case.qkv[start : start + length]
        alone.qk_norm, alone.bias, alone.rope = case.qk_norm, case.bias, case.rope
        if OPTIONS[name].get("by_sequence"):
            alone.rope = tuple(t[row : row + 1] for t in case.rope)
        budget = alone.budget(alone.want())
        if dtype == np.float32:
            budget = min(budget, 1e-5)
        error = oracle.max_error(driver, alone.run(driver), together[start : start + length])
        assert error <= budget
        start += length


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(st.integers(1, 33), min_size=1, max_size=4),
    heads=st.sampled_from([(1, None), (3, 3), (4, 2), (6, 1)]),
    dim=st.sampled_from([2, 7, 33]),
    rope=st.sampled_from([0.0, 0.5, 1.0]),
    qk_norm=st.booleans(),
    causal=st.booleans(),
    left=st.none() | st.integers(0, 12),
    right=st.none() | st.integers(0, 12),
    bias=st.none() | st.integers(0, 3),
    seed=st.integers(0, 2**16),
)
def test_any_combination_of_options_matches_oracle(
    driver, lengths, heads, dim, rope, qk_norm, causal, left, right, bias, seed
):
    for dtype in (np.float32, np.float16):
        case = Case(
            np.random.default_rng(seed),
            np.dtype(dtype),
            tuple(lengths),
            dim,
            heads=heads[0],
            kv=heads[1],
            rope=rope,
            qk_norm=qk_norm,
            causal=causal,
            left=left,
            right=right,
            bias=bias,
        )
        want = case.want()
        assert oracle.max_error(driver, case.run(driver), want) <= case.budget(want)


@pytest.mark.parametrize("reach", [2, 4, 20])
@pytest.mark.parametrize("seq", [30, 300])
def test_num_12_a_changed_token_moves_the_outputs_within_its_window_alone(
    driver, rng, dtype, reach, seq
):
    """With 300 tokens through the band, with 30 and a reach of 20 through the mask."""
    case = Case(rng, dtype, (seq,), 8, left=reach, right=reach)
    before = driver.to_host(case.run(driver)).copy()
    case.qkv[15] += 1
    moved = np.flatnonzero((driver.to_host(case.run(driver)) != before).any(axis=1))
    assert moved.tolist() == list(range(max(0, 15 - reach), min(seq, 15 + reach + 1)))


@pytest.mark.parametrize("left", [None, 4])
def test_causal_attention_does_not_see_later_tokens(driver, rng, dtype, left):
    case = Case(rng, dtype, (30,), 8, causal=True, left=left)
    before = driver.to_host(case.run(driver)).copy()
    case.qkv[15] += 1
    moved = np.flatnonzero((driver.to_host(case.run(driver)) != before).any(axis=1))
    assert moved.tolist() == list(range(15, 30 if left is None else 20))


@pytest.mark.parametrize("long", [127, 128, 129, 191, 256, 257])
def test_num_15_a_short_text_beside_a_long_one_stays_finite_and_itself(driver, rng, dtype, long):
    """A padded query of the short text finds no real key in its window."""
    options = {"left": 64, "right": 64, "heads": 2}
    case = Case(rng, dtype, (6, long), 8, **options)
    together = driver.to_host(case.run(driver))
    assert np.isfinite(together).all()
    alone = Case(rng, dtype, (6,), 8, **options)
    alone.qkv = case.qkv[:6]
    budget = (
        min(1e-5, alone.budget(alone.want())) if dtype == np.float32 else alone.budget(alone.want())
    )
    assert oracle.max_error(driver, alone.run(driver), together[:6]) <= budget


@pytest.mark.parametrize("name", OPTIONS)
def test_a_poisoned_sequence_does_not_reach_its_batch_mates(driver, rng, dtype, name):
    case = Case(rng, dtype, LENGTHS, 8, **OPTIONS[name])
    clean = driver.to_host(case.run(driver)).copy()
    case.qkv[7] = np.nan
    got = driver.to_host(case.run(driver))
    assert np.isnan(got[7]).all()
    for rows in (slice(0, 7), slice(8, 41)):
        assert np.array_equal(got[rows], clean[rows])


def test_num_16_a_head_may_be_wider_than_hidden_over_heads(driver, rng, dtype):
    """Qwen3's shape: four query heads and two key heads of 32 beside a hidden size of 64."""
    case = Case(rng, dtype, LENGTHS, 32, heads=4, kv=2, qk_norm=True, rope=1.0, causal=True)
    case.plain["head_dim"] = 32
    got, want = case.run(driver), case.want()
    assert got.shape == (41, 128)
    assert oracle.max_error(driver, got, want) <= case.budget(want)


def test_the_norm_of_q_and_k_comes_before_the_rotation(driver, rng):
    """Told apart by weights that differ within a pair."""
    case = Case(rng, np.dtype(np.float32), (33,), 8, rope=1.0, qk_norm=True)
    want = case.want()
    heads = oracle.wide(case.qkv).reshape(33, 3, 3, 8).transpose(1, 2, 0, 3)
    turned = [oracle.rotate(x, *case.rope) for x in heads[:2]]
    normed = [oracle.rms_norm(x, w, eps=1e-6) for x, w in zip(turned, case.qk_norm[:2])]
    other = np.stack([*normed, heads[2]]).transpose(2, 0, 1, 3).reshape(33, -1)
    wrong = oracle.attention(other, (33,), num_heads=3)
    error = oracle.max_error(driver, case.run(driver), want)
    assert oracle.max_difference(wrong, want) > 1000 * error


@pytest.mark.parametrize(("left", "right", "banded"), [(4, 4, True), (8, 8, False), (4, 3, False)])
def test_a_narrow_symmetric_window_takes_the_band(left, right, banded):
    """A band of 2 w + 1 keys up to half the length: 33 tokens have 9 and 15 but not 17."""
    null = NullDriver()
    null.attention(
        null.alloc_zeros((33, 24)),
        batch_of(null, [33]),
        num_heads=2,
        window_left=left,
        window_right=right,
    )
    assert (null.tally.calls_total["banded_qk"] == 1) is banded
    assert (null.tally.calls_total["fused_scale_mask_softmax"] == 0) is banded


def test_options_that_do_not_fit_are_refused(any_driver):
    batch = batch_of(any_driver, [2, 3])
    qkv = any_driver.alloc_zeros((5, 32))
    with pytest.raises(ShapeError, match=r"attention: the window reaches \(-1, None\)"):
        any_driver.attention(qkv, batch, num_heads=4, kv_heads=2, window_left=-1)
    with pytest.raises(ShapeError, match="attention: 3 key heads do not divide 4 heads"):
        any_driver.attention(qkv, batch, num_heads=4, kv_heads=3)
    with pytest.raises(ShapeError, match="attention: .* a last dimension of 8 heads of 5"):
        any_driver.attention(qkv, batch, num_heads=4, kv_heads=2, head_dim=5)
    short = Rope(any_driver.alloc_zeros((2, 2)), any_driver.alloc_zeros((2, 2)))
    with pytest.raises(ShapeError, match="apply_rope: .* at least 3 positions"):
        any_driver.attention(qkv, batch, num_heads=4, kv_heads=2, rope=short)
    norm = QkNorm(any_driver.alloc_zeros((4,)), any_driver.alloc_zeros((5,)), eps=1e-6)
    with pytest.raises(ShapeError, match=r"rms_norm: weight has shape \(5,\), wanted \(4\)"):
        any_driver.attention(qkv, batch, num_heads=4, kv_heads=2, qk_norm=norm)
    bias = any_driver.alloc_zeros((4, 3))
    with pytest.raises(ShapeError, match="an odd width of at least 5"):
        any_driver.attention(qkv, batch, num_heads=4, kv_heads=2, position_bias=bias)
