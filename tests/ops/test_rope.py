"""Rotary positions: half-split pairs, partial rotation, and a table for each sequence."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from tests import oracle
from tests.ops.contract import check_op

CASES = [(1, 1, 1, 2, 2), (2, 3, 7, 8, 8), (3, 1, 33, 31, 10), (1, 5, 65, 64, 32), (2, 2, 5, 7, 6)]
"""B, N, S, D, R."""


def tables(positions, rotary, theta=10000.0):
    """cos and sin (P, R / 2) of position * theta^(-2 j / R), float32."""
    angle = np.arange(positions)[:, None] * theta ** (-np.arange(0, rotary, 2) / rotary)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rope_budget(x, want, dtype):
    return oracle.error_budget(want, dtype, terms=3, scale=2 * float(np.abs(oracle.wide(x)).max()))


@pytest.mark.parametrize(("batch", "heads", "seq", "dim", "rotary"), CASES)
def test_apply_rope_matches_oracle(driver, rng, dtype, batch, heads, seq, dim, rotary):
    x = rng.standard_normal((batch * heads, seq, dim)).astype(dtype)
    cos, sin = tables(seq + 3, rotary)  # more positions than the batch has
    want = oracle.rotate(x, cos, sin)
    budget = rope_budget(x, want, dtype)
    check_op(driver, "apply_rope", [x, cos, sin], want, budget, dtype=dtype, may_alias=[0])


@pytest.mark.parametrize(("batch", "heads", "seq", "dim", "rotary"), CASES)
def test_each_sequence_may_have_its_own_table(driver, rng, dtype, batch, heads, seq, dim, rotary):
    x = rng.standard_normal((batch * heads, seq, dim)).astype(dtype)
    cos, sin = (
        np.stack(t) for t in zip(*(tables(seq, rotary, 10.0 ** (b + 2)) for b in range(batch)))
    )
    of_heads = [np.repeat(t, heads, axis=0) for t in (cos, sin)]
    want = oracle.rotate(x, *of_heads)
    budget = rope_budget(x, want, dtype)
    check_op(driver, "apply_rope", [x, cos, sin], want, budget, dtype=dtype, may_alias=[0])


def test_the_pairs_are_half_a_rotation_apart_and_turn_towards_the_second(driver):
    """A quarter turn takes x[0] to x[2] and x[2] to -x[0]; neighbours are no pair."""
    cos, sin = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    x = np.array([[[1, 2, 3, 4, 5]]], np.float32)
    got = driver.apply_rope(*map(driver.from_host, (x.copy(), cos, sin)))
    assert driver.to_host(got).tolist() == [[[-3, -4, 1, 2, 5]]]


def test_position_zero_and_dimensions_behind_r_pass_unchanged(driver, rng, dtype):
    x = rng.standard_normal((6, 7, 31)).astype(dtype)
    cos, sin = tables(7, 10)
    got = driver.to_host(driver.apply_rope(*map(driver.from_host, (x.copy(), cos, sin))))
    assert np.array_equal(got[:, 0], x[:, 0])
    assert np.array_equal(got[..., 10:], x[..., 10:])
    assert (got[:, 1:, :10] != x[:, 1:, :10]).any(axis=-1).all()


def test_scores_depend_on_the_distance_alone(driver, rng):
    """What rotation is for: q[i + s] . k[j + s] is q[i] . k[j] for the same vectors."""
    vector = rng.standard_normal((2, 1, 32)).astype(np.float32)
    x = np.repeat(vector, 33, axis=1)
    got = driver.apply_rope(*map(driver.from_host, (x, *tables(33, 32))))
    q, k = oracle.wide(driver.to_host(got))
    scores = q @ k.T
    for distance in range(-30, 31, 7):
        diagonal = np.diagonal(scores, distance)
        assert np.ptp(diagonal) <= 1e-4 * np.abs(scores).max()


def test_rotation_keeps_the_length_of_every_pair(driver, rng):
    x = rng.standard_normal((6, 33, 64)).astype(np.float32)
    got = oracle.wide(
        driver.to_host(driver.apply_rope(*map(driver.from_host, (x, *tables(33, 64)))))
    )
    before, after = (np.hypot(v[..., :32], v[..., 32:]) for v in (oracle.wide(x), got))
    assert np.abs(after - before).max() <= 1e-6 * before.max()


@pytest.mark.parametrize(
    ("cos", "sin", "message"),
    [
        ((7, 4), (7, 3), r"sin has shape \(7, 3\), wanted \(7, 4\)"),
        ((6, 4), (6, 4), "wanted at least 7 positions"),
        ((7, 5), (7, 5), "at most 4 pairs"),
        ((4, 7, 4), (4, 7, 4), "4 tables do not divide 6 heads"),
        ((7,), (7,), r"cos has shape \(7,\)"),
    ],
)
def test_tables_that_do_not_fit_are_refused(any_driver, cos, sin, message):
    x = any_driver.alloc_zeros((6, 7, 8))
    with pytest.raises(ShapeError, match=f"^apply_rope: .*{message}"):
        any_driver.apply_rope(x, any_driver.alloc_zeros(cos), any_driver.alloc_zeros(sin))


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_tables_are_float32_and_nothing_else(driver, name):
    kinds = {"cos": np.float32, "sin": np.float32, name: np.float16}
    given = [driver.alloc_zeros((7, 4), kind) for kind in kinds.values()]
    with pytest.raises(DtypeError, match=f"apply_rope: {name} has dtype float16, wanted float32"):
        driver.apply_rope(driver.alloc_zeros((6, 7, 8)), *given)
