"""Attention in parts of bounded scores, against the same attention at once and the oracle."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from drivers import NumpyDriver
from tests import oracle
from tests.ops.test_attention_options import LENGTHS, OPTIONS, Case, batch_of

SCORES_OF_A_SEQUENCE = 4 * 3 * 33 * 33  # of OPTIONS without heads of their own
LIMITS = {
    "a query at a time": 1,
    "blocks of queries": 7 * 33 * 4,
    "a head at a time": SCORES_OF_A_SEQUENCE - 1,
    "a sequence at a time": SCORES_OF_A_SEQUENCE,
    "two sequences, then one": 2 * SCORES_OF_A_SEQUENCE,
}


def bounded(limit):
    driver = NumpyDriver()
    driver.max_score_bytes = limit
    return driver


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", OPTIONS)
def test_attention_in_parts_matches_oracle_and_itself_at_once(rng, dtype, name, limit):
    case = Case(rng, dtype, LENGTHS, 32, **OPTIONS[name])
    got, whole, want = case.run(bounded(LIMITS[limit])), case.run(bounded(1 << 40)), case.want()
    assert got.dtype == dtype
    for other in (want, oracle.wide(whole)):
        assert np.abs(oracle.wide(got) - other).max() <= case.budget(want)


def test_what_fits_is_computed_at_once(rng, monkeypatch):
    case = Case(rng, np.float32, LENGTHS, 32)
    parts = []
    monkeypatch.setattr(NumpyDriver, "_attend_by_head", lambda *_: parts.append(_))
    case.run(bounded(3 * SCORES_OF_A_SEQUENCE))
    assert parts == []


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"heads": 8, "kv": 2}], ids=str)
def test_a_long_row_needs_its_limit_and_not_its_scores(rng, options):
    case = Case(rng, np.float32, (1500, 3), 16, **({"heads": 4} | options))
    driver = bounded(1 << 20)
    tensor, batch = case.qkv, batch_of(driver, case.lengths)
    tracemalloc.start()
    try:
        driver.attention(tensor, batch, **case.options(driver))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 4 * 1500 * 1500 > 8_000_000  # the scores of one head alone
    assert peak < 8 * tensor.nbytes + 3 * (1 << 20)
