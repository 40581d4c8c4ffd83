"""Batches under a token budget: every row once, longest first, padding paid for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bucketing import plan_batches

lengths_lists = st.lists(st.integers(0, 600), max_size=200)
budgets = st.integers(1, 5000)


@given(lengths_lists, budgets)
def test_every_index_is_in_one_batch(lengths, budget):
    batches = plan_batches(lengths, budget)
    assert sorted(int(i) for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(batch) for batch in batches)


@given(lengths_lists, budgets)
def test_padded_cost_stays_under_the_budget_unless_one_row_exceeds_it(lengths, budget):
    for batch in plan_batches(lengths, budget):
        longest = max(lengths[i] for i in batch)
        assert len(batch) * longest <= budget or len(batch) == 1


@given(lengths_lists, budgets)
def test_rows_run_from_longest_to_shortest_with_ties_in_input_order(lengths, budget):
    order = [int(i) for batch in plan_batches(lengths, budget) for i in batch]
    assert order == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


@given(lengths_lists, budgets)
def test_a_batch_is_closed_only_where_one_more_row_would_break_the_budget(lengths, budget):
    batches = plan_batches(lengths, budget)
    for batch in batches[:-1]:
        longest = max(1, max(lengths[i] for i in batch))
        assert (len(batch) + 1) * longest > budget


@given(lengths_lists, budgets)
def test_same_lengths_give_the_same_batches_from_lists_and_arrays(lengths, budget):
    first = plan_batches(lengths, budget)
    second = plan_batches(np.array(lengths, dtype=np.int64), budget)
    assert [b.tolist() for b in first] == [b.tolist() for b in second]


def test_batches_of_a_known_case():
    batches = plan_batches([3, 9, 3, 4, 20], max_batch_tokens=9)
    assert [b.tolist() for b in batches] == [[4], [1], [3, 0], [2]]


def test_no_lengths_give_no_batches():
    assert plan_batches([], 100) == []


def test_a_length_beyond_32_bits_is_a_batch_of_its_own():
    batches = plan_batches([1, 2**40, 1], max_batch_tokens=2**35)
    assert [b.tolist() for b in batches] == [[1], [0, 2]]


@pytest.mark.parametrize("budget", [0, -1, -(2**40)])
def test_budget_below_one_is_refused(budget):
    with pytest.raises(ValueError, match=f"max_batch_tokens is {budget}, wanted at least 1"):
        plan_batches([1, 2], budget)
