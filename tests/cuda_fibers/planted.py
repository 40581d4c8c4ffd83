"""Mistakes planted in the kernels' sources, and what is asked of them: that they show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from drivers.cuda.launch import Build
from tests.cuda_fibers.engine import ORDERS, FiberError


@dataclass(frozen=True)
class Edit:
    """A change of a theme's source, for a planted mistake.

    before stands there once; what follows `until` is left out, and with it all kernels but `only`.
    level: of optimisation; a mutant runs once, so that compiling it is what takes time.
    """

    theme: str
    before: str
    after: str
    until: str | None = None
    only: tuple[str, ...] = ()
    level: str = "-O0"

    def made(self, build: Build) -> Build:
        assert build.source.count(self.before) == 1, self.before
        source = build.source.replace(self.before, self.after)
        if self.until is not None:
            source = source.partition(self.until)[0]
        return Build(source, self.only or build.kernels, build.defines)


def shows(error, most, orders=ORDERS):
    """Whether the error of an answer, error(order), is NaN or above `most` in one of the orders."""
    return any(not error(order) <= most for order in orders)


def ends(run, kernel, message, orders=ORDERS):
    """Ask that in every order run(order) ends with a fault of the kernel that has the message."""
    for order in orders:
        with pytest.raises(FiberError, match=f"{kernel}, {order}: .*({message})"):
            run(order)


def answers_well(run):
    """What run() says of its answer, and False where it left its memory."""
    try:
        return run()
    except FiberError as error:
        assert "touches memory" in str(error)
        return False
