"""What a planted fault is."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One mistake: where `old` stands exactly once, `new` is planted, and `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # test files of tests/ops, without test_ and .py
