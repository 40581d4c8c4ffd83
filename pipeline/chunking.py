"""Cutting a long text into overlapping chunks by its tokens. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError


def chunk_spans(
    offsets: NDArray[np.integer], max_tokens: int, overlap_tokens: int
) -> list[tuple[int, int]]:
    """Character spans ``(start, end)`` of the chunks of one text, in order.

    `offsets` is (n_tokens, 2): the character range of each content token, as the tokenizer gives
    it for the whole text without special tokens and without truncation. The rule:

    - A chunk holds at most `max_tokens` tokens. It ends at the last gap between tokens (white
      space) in its second half, else at the last place in that half that is not inside a
      character, else after `max_tokens` tokens.
    - The next chunk starts `overlap_tokens` before that end, moved forward to the nearest gap up to
      that end, or to the nearest place not inside a character where there is no gap: it repeats at
      most `overlap_tokens` tokens, none where it would start inside a word, and it always starts
      after the one before.
    - Chunks end where the tokens end: the last one ends with the last token, and no chunk lies
      within another. Every token lies in a chunk; the spans leave out only what is between tokens.

    A text of at most `max_tokens` tokens is one span, and one without tokens is none. Raises
    UsageError unless ``0 <= overlap_tokens < max_tokens``.
    """
    if not 0 <= overlap_tokens < max_tokens:
        raise UsageError(
            f"chunking: wanted 0 <= overlap_tokens < max_tokens, got overlap_tokens "
            f"{overlap_tokens} and max_tokens {max_tokens}"
        )
    count = len(offsets)
    if count == 0:
        return []
    starts, ends = offsets[:, 0], np.maximum.accumulate(offsets[:, 1])
    # How good a cut before token i is: 2 in a gap, 1 between characters, 0 inside one.
    quality = np.full(count + 1, 2)
    quality[1:count] = np.where(starts[1:] > ends[:-1], 2, np.where(starts[1:] >= ends[:-1], 1, 0))
    spans: list[tuple[int, int]] = []
    first = last = 0
    while True:
        previous_last, last = last, min(first + max_tokens, count)
        if last < count:
            low = max(previous_last + 1, first + (max_tokens + 1) // 2)
            last = low + _last_best(quality[low : last + 1])
        spans.append((int(starts[first:last].min()), int(ends[last - 1])))
        if last == count:
            return spans
        low = max(first + 1, last - overlap_tokens)
        first = low + int(np.argmax(quality[low : last + 1]))


def _last_best(quality: NDArray[np.integer]) -> int:
    """The last place with the highest quality."""
    return len(quality) - 1 - int(np.argmax(quality[::-1]))
