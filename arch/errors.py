"""What a model folder can get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CheckpointError(Exception):
    """A folder that cannot be loaded exactly; names the file, what it holds and what was wanted."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@contextmanager
def naming_unreadable(folder: Path) -> Iterator[None]:
    """Turn a failing system call of the block into a CheckpointError that names the file."""
    try:
        yield
    except OSError as error:
        path = Path(error.filename) if isinstance(error.filename, str) else folder
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
