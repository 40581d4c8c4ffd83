"""Batches of texts of like length under a token budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def plan_batches(
    lengths: Sequence[int] | NDArray[np.int64], max_batch_tokens: int
) -> list[NDArray[np.int64]]:
    """Indices of each batch: rows sorted by length, longest first, cut under the budget.

    A batch's cost is its rows times its longest length, so that padding counts too; a single row
    above the budget is a batch of its own. Every index occurs once. Ties keep their input order, so
    the same lengths give the same batches. Raises ValueError for a budget below 1.
    """
    if max_batch_tokens < 1:
        raise ValueError(f"max_batch_tokens is {max_batch_tokens}, wanted at least 1")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        rows = max(1, max_batch_tokens // max(1, int(sizes[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches
