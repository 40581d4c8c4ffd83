"""Errors a user can act on; each carries the exit code of the command."""

from __future__ import annotations


class RayvecError(Exception):
    """The work failed; the message says what was got, what was wanted, and where."""

    exit_code = 1


class UsageError(RayvecError):
    """Wrong usage or configuration, found before any work was done."""

    exit_code = 2


class GuardError(RayvecError):
    """A guard stopped the run (too many bad rows, a shrinking corpus); done work is kept."""

    exit_code = 3


class TextError(UsageError):
    """A text that cannot be embedded, named by its row."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason
