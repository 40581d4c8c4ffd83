"""The part of the contract that every operation shares: fresh results, `out=`, aliasing, purity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drivers.types import MASKED_AT_OR_BELOW
from tests.oracle import error_budget, max_error, wide

DIVIDES_NOTHING = [(1, 1), (1, 1025), (7, 31), (33, 1), (31, 1023), (5, 1025)]
"""Row counts and widths that no block, lane or warp divides."""


def nans(driver: Any, shape: Sequence[int], dtype: Any) -> Any:
    """A buffer that gives away every value an operation forgets to write."""
    return driver.from_host(np.full(shape, np.nan, dtype))


def integers(driver: Any, values: Any) -> Any:
    """int32 on the device."""
    return driver.from_host(np.asarray(values, dtype=np.int32))


def softmax_budget(scores: Any, scale: float, want: Any, dtype: Any, added: Any = 0.0) -> float:
    """A logit's float32 error is the exponent's, so a weight errs by its own size times that.

    added: what is added to the scaled scores (masks, biases); a masked value adds nothing.
    """
    scores, added = wide(scores), wide(added)
    largest = float(np.abs(scores[np.isfinite(scores)]).max(initial=0) * abs(scale))
    largest += float(np.abs(added[added > MASKED_AT_OR_BELOW]).max(initial=0))
    terms = 8 + np.log2(2 * scores.shape[-1])
    return error_budget(want, dtype, terms=terms, scale=float(want.max(initial=0)) * (1 + largest))


def check_op(
    driver: Any,
    op: str,
    inputs: Sequence[np.ndarray],
    want: np.ndarray,
    budget: float,
    *,
    dtype: Any,
    may_alias: Sequence[int] = (),
    **options: Any,
) -> None:
    """One operation against its oracle in every way of calling it.

    Without `out`; with an `out` full of NaN; and with `out` on each input of `may_alias`. Each
    result has the dtype, is within the budget, is `out` itself where one was given, and leaves the
    inputs that it does not alias as they were.
    """
    run = getattr(driver, op)
    for alias in [None, "nan", *may_alias]:
        tensors = [driver.from_host(array.copy()) for array in inputs]
        if alias is None:
            got = run(*tensors, **options)
        else:
            out = nans(driver, want.shape, dtype) if alias == "nan" else tensors[alias]
            got = run(*tensors, **options, out=out)
            assert got is out, f"{op} returned another tensor than out"
        how = "a new result" if alias is None else f"out on {alias}"
        assert got.dtype == dtype, f"{op}, {how}"
        assert max_error(driver, got, want) <= budget, f"{op}, {how}"
        for position, (tensor, before) in enumerate(zip(tensors, inputs, strict=True)):
            if position != alias:
                after = driver.to_host(tensor)
                assert np.array_equal(after, before), f"{op}, {how}: changed input {position}"
