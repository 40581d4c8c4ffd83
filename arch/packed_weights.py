"""Packed weights on disk: written once a machine for a model and a layout, mapped by all processes.

A file holds the arrays one after the other, each from a multiple of 64 bytes on, then an index
(JSON: name -> dtype, shape, offset), then the index's length and `MAGIC`. It gets its name by one
rename when it is complete. Its name holds the sha256 of the weights, so that a changed model never
meets the packing of another; files of old models stay until somebody deletes them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

MAGIC = b"RAYVECPW"
NAMES_VERSION = 1
"""Raised when a family's field comes to hold other rows, or rows in another order."""
ALIGNMENT_BYTES = 64
BLOCK_BYTES = 1 << 22


class PackedWeights:
    """The packed weights of one model in one layout: read where they were written before.

    Use as a context manager around the load: what was added is kept when it ends well.
    """

    def __init__(self, folder: Path, weight_files: Iterable[Path], layout: str) -> None:
        """folder: where packed files lie; made where it is not there. layout: the driver's name of
        the memory layout, part of the file's name."""
        self._folder = folder
        self._files = tuple(weight_files)
        self._layout = layout
        self._path: Path | None = None
        self._found: dict[str, NDArray[Any]] | None = None
        self._writer: _Writer | None = None

    def __enter__(self) -> PackedWeights:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path = self._folder / f"{self._digest()}-{NAMES_VERSION}-{self._layout}.packed"
            self._found = _read(self._path)
            if self._found is None:
                self._writer = _Writer(self._path)
        except OSError as error:
            self._give_up(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is None:
            return
        try:
            if kind is None:
                self._writer.finish()
            else:
                self._writer.abandon()
        except OSError as error:
            self._give_up(error)

    def get(self, name: str) -> NDArray[Any] | None:
        """A mapped, read-only array; None where there is none yet."""
        return None if self._found is None else self._found.get(name)

    def add(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Keep an array for later loads; what it gives is to be used from here on: it is mapped."""
        if self._writer is None:
            return values
        try:
            return self._writer.add(name, values)
        except OSError as error:
            self._give_up(error)
            return values

    def _give_up(self, error: OSError) -> None:
        logger.warning(
            "%s: packed weights are not kept, each process packs its own: %s",
            self._folder,
            error.strerror or error,
        )
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _digest(self) -> str:
        """sha256 of the weight files, computed once for as long as they stay as they are."""
        whole = hashlib.sha256()
        for path in self._files:
            state = path.stat()
            known_as = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {state.st_ino}"
            note = self._folder / f"{hashlib.sha256(known_as.encode()).hexdigest()[:32]}.sha256"
            try:
                digest = note.read_text(encoding="ascii")
            except FileNotFoundError:
                digest = _sha256(path)
                _write_whole(note, digest.encode("ascii"))
            whole.update(f"{path.name} {digest}\n".encode())
        return whole.hexdigest()[:32]


class _Writer:
    """Appends arrays to a file of a name of its own, which gets its real name at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        self._file: BinaryIO = self._part.open("xb")
        self._index: dict[str, tuple[str, list[int], int]] = {}

    def add(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        offset = self._file.tell()
        self._file.write(np.ascontiguousarray(values).data.cast("B"))
        self._file.write(bytes(-values.nbytes % ALIGNMENT_BYTES))
        self._file.flush()
        self._index[name] = (values.dtype.str, list(values.shape), offset)
        if not values.size:
            return values
        return np.memmap(self._part, values.dtype, "r", offset, values.shape)

    def finish(self) -> None:
        index = json.dumps(self._index).encode()
        self._file.write(index + len(index).to_bytes(8, "little") + MAGIC)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self._path)

    def abandon(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays of a packed file, mapped; None where there is none, or it is not whole."""
    if not path.exists():
        return None
    size = path.stat().st_size
    mapped = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
    length = int(mapped[-16:-8].view("<u8")[0]) if size >= 16 else size
    if mapped[-8:].tobytes() != MAGIC or length > size - 16:
        logger.warning("%s: is not a whole file of packed weights; it is written again", path)
        return None
    index = json.loads(mapped[size - 16 - length : size - 16].tobytes())
    arrays = {}
    for name, (dtype, shape, offset) in index.items():
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays[name] = mapped[offset : offset + count].view(dtype).reshape(shape)
    return arrays


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that no reader ever sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    part.write_bytes(content)
    part.replace(path)
