"""Chunks of tokens: nothing lost, nothing within another, the same every time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chunking import chunk_spans
from pipeline.errors import UsageError


def words(count: int) -> np.ndarray:
    """Tokens of two characters with a space between them."""
    starts = 3 * np.arange(count)
    return np.stack([starts, starts + 2], axis=1)


@pytest.mark.parametrize(
    ("count", "max_tokens", "overlap", "want"),
    [
        (0, 4, 1, []),
        (1, 1, 0, [(0, 1)]),
        (4, 4, 3, [(0, 4)]),
        (5, 4, 0, [(0, 4), (4, 5)]),
        (10, 4, 1, [(0, 4), (3, 7), (6, 10)]),
        (9, 4, 3, [(0, 4), (1, 5), (2, 6), (3, 7), (4, 8), (5, 9)]),
        (3, 1, 0, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_windows_over_separate_words(
    count: int, max_tokens: int, overlap: int, want: list[tuple[int, int]]
) -> None:
    got = chunk_spans(words(count), max_tokens, overlap)
    assert got == [(3 * first, 3 * last - 1) for first, last in want]


def test_a_chunk_ends_at_a_gap_in_its_second_half() -> None:
    #                    ab   cd   ef  gap  gh   ij
    offsets = np.array([[0, 2], [2, 4], [4, 6], [7, 9], [9, 11]])
    assert chunk_spans(offsets, 4, 0) == [(0, 6), (7, 11)]
    assert chunk_spans(offsets, 4, 2) == [(0, 6), (7, 11)]
    assert chunk_spans(offsets, 3, 1) == [(0, 6), (7, 11)]
    assert chunk_spans(offsets, 2, 0) == [(0, 4), (4, 6), (7, 11)]


def test_a_character_of_several_tokens_is_not_cut() -> None:
    offsets = np.array([[0, 1], [1, 2], [1, 2], [2, 3], [3, 4]])
    assert chunk_spans(offsets, 2, 0) == [(0, 1), (1, 2), (2, 4)]
    assert chunk_spans(offsets[1:3], 1, 0) == [(1, 2), (1, 2)]


@pytest.mark.parametrize(("max_tokens", "overlap"), [(0, 0), (4, 4), (4, -1), (4, 9)])
def test_an_overlap_that_leaves_no_room_is_refused(max_tokens: int, overlap: int) -> None:
    with pytest.raises(UsageError, match="overlap_tokens < max_tokens"):
        chunk_spans(words(3), max_tokens, overlap)


tokens = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), min_size=1, max_size=60
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(tokens, st.integers(1, 12), st.data())
def test_every_token_is_in_a_chunk_and_no_chunk_in_another(
    shapes: list[tuple[int, int, bool]], max_tokens: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, max_tokens - 1))
    at = 0
    rows: list[tuple[int, int]] = []
    for gap, length, repeat in shapes:
        if repeat and rows:
            rows.append(rows[-1])
            continue
        rows.append((at + gap, at + gap + length))
        at += gap + length
    offsets = np.array(rows)
    spans = chunk_spans(offsets, max_tokens, overlap)
    assert spans == chunk_spans(offsets, max_tokens, overlap)
    for start, end in rows:
        assert any(first <= start and end <= last for first, last in spans)
    assert spans[0][0] == offsets[0, 0]
    assert spans[-1][1] == offsets[:, 1].max()
    if len(rows) <= max_tokens:
        assert len(spans) == 1
    if len({*rows}) == len(rows) and all(start < end for start, end in rows):
        for (start, end), (next_start, next_end) in pairwise(spans):
            assert start < next_start
            assert end < next_end
            held = sum(start <= first and last <= end for first, last in rows)
            shared = sum(next_start <= first and last <= end for first, last in rows)
            assert held <= max_tokens
            assert shared <= overlap
