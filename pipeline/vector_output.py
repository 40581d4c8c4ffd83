"""Vectors of `rayvec embed` as JSON lines, .npy or Parquet. A file appears whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.embedder import Embedded
from pipeline.errors import UsageError

OutputFormat = Literal["jsonl", "npy", "parquet"]

SUFFIXES: dict[str, OutputFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npy": "npy",
    ".parquet": "parquet",
}

RowIds = Sequence[str | int] | None


class OutputFile:
    """A binary file for writing whose failures are UsageErrors that name it.

    A reader that left (BrokenPipeError) is no failure of the file and is passed on.
    """

    closed = False

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file

    def write(self, data: bytes) -> int:
        """Write all of the data."""
        with naming_output(self._name):
            return self._file.write(data)

    def flush(self) -> None:
        """Hand what was written to the system."""
        with naming_output(self._name):
            self._file.flush()

    def close(self) -> None:
        """Whoever opened the file closes it."""
        self.flush()


@contextmanager
def naming_output(name: str) -> Iterator[None]:
    """Turn a failing system call of the block into a UsageError that names the output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"output '{name}': cannot be written: {reason}") from error


class VectorWriter(ABC):
    """Writes blocks of rows to an open binary file."""

    def __init__(self, file: OutputFile, dim: int) -> None:
        self.file = file
        self.dim = dim

    @abstractmethod
    def write(self, rows: Embedded, ids: RowIds) -> None:
        """Append a block of rows. Raises UsageError for ids that the format cannot hold."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the file; nothing is written after it."""

    def abandon(self) -> None:  # noqa: B027  # most writers hold nothing
        """Free what the writer holds; the file will not be completed."""


class JsonLinesWriter(VectorWriter):
    """{"id": …, "n_tokens": …, "truncated": …, "vector": […]} a row; shortest exact floats."""

    def write(self, rows: Embedded, ids: RowIds) -> None:
        for i, vector in enumerate(rows.vectors):
            head = {} if ids is None else {"id": ids[i]}
            head |= {"n_tokens": int(rows.tokens[i]), "truncated": bool(rows.truncated[i])}
            numbers = ", ".join(map(str, vector))
            line = f'{json.dumps(head)[:-1]}, "vector": [{numbers}]}}\n'
            self.file.write(line.encode("utf-8"))

    def finish(self) -> None:
        self.file.flush()


class NpyWriter(VectorWriter):
    """One float32 array (rows, D), held in memory until the end; ids are not kept."""

    def __init__(self, file: OutputFile, dim: int) -> None:
        super().__init__(file, dim)
        self._blocks: list[NDArray[np.float32]] = []

    def write(self, rows: Embedded, ids: RowIds) -> None:
        self._blocks.append(rows.vectors)

    def finish(self) -> None:
        shape = (sum(map(len, self._blocks)), self.dim)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)
        for block in self._blocks:
            self.file.write(block.astype("<f4", copy=False).tobytes())
        self.file.flush()


class ParquetWriter(VectorWriter):
    """Columns id (where the input has ids), vector FixedSizeList<float>[D], n_tokens, truncated."""

    def __init__(self, file: OutputFile, dim: int) -> None:
        super().__init__(file, dim)
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: Embedded, ids: RowIds) -> None:
        flat = pa.array(rows.vectors.reshape(-1), pa.float32())
        columns = {
            "vector": pa.FixedSizeListArray.from_arrays(flat, self.dim),
            "n_tokens": pa.array(rows.tokens, pa.int32()),
            "truncated": pa.array(rows.truncated, pa.bool_()),
        }
        if ids is not None:
            columns = {"id": _id_column(ids), **columns}
        table = pa.table(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.file, table.schema)
        if table.schema != self._writer.schema:
            raise UsageError(MIXED_IDS)
        self._writer.write_table(table)

    def finish(self) -> None:
        if self._writer is None:
            empty = np.empty(0, dtype=np.int64)
            none = np.empty((0, self.dim), dtype=np.float32)
            self.write(Embedded(none, empty, empty.astype(bool)), None)
        if self._writer is not None:
            self._writer.close()
        self.file.flush()

    def abandon(self) -> None:
        if self._writer is not None:
            with suppress(UsageError):  # the caller already knows that the file is broken
                self._writer.close()


WRITERS: dict[OutputFormat, type[VectorWriter]] = {
    "jsonl": JsonLinesWriter,
    "npy": NpyWriter,
    "parquet": ParquetWriter,
}

MIXED_IDS = "Parquet holds ids of one type, but ids are integers in some rows and strings in others"


def output_format(output: str, asked: OutputFormat | None) -> OutputFormat:
    """The format asked for, else the one of the file's ending; JSON lines on standard output.

    Raises UsageError for an ending that says nothing.
    """
    if asked is not None:
        return asked
    if output == "-":
        return "jsonl"
    suffix = Path(output).suffix
    if suffix not in SUFFIXES:
        raise UsageError(
            f"output '{output}': wanted an ending of {', '.join(SUFFIXES)}, or --format"
        )
    return SUFFIXES[suffix]


@contextmanager
def open_writer(output: str, file_format: OutputFormat, dim: int) -> Iterator[VectorWriter]:
    """A writer to a file, or to standard output for `-`.

    A regular file is written beside its place and moved there at the end: where the work fails,
    what was there before stays. A pipe or a device is written to as it is. Raises UsageError where
    it cannot be written.
    """
    if output == "-":
        if sys.stdout is None:
            raise UsageError("output '-': standard output is closed")
        with _writing(output, sys.stdout.buffer, file_format, dim) as writer:
            yield writer
        return
    with naming_output(output):
        place = Path(os.path.realpath(output))
        if place.is_dir():
            raise UsageError(f"output '{output}': cannot be written: it is a folder")
        special = place.exists() and not place.is_file()
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place if special else place.with_name(f".rayvec-{os.getpid()}.partial")
        file = partial.open("wb")
    try:
        with _writing(output, file, file_format, dim) as writer:
            yield writer
        with naming_output(output):
            file.close()
            if not special:
                partial.replace(place)
    finally:
        if not special:
            with naming_output(output):
                partial.unlink(missing_ok=True)


@contextmanager
def _writing(
    name: str, file: BinaryIO, file_format: OutputFormat, dim: int
) -> Iterator[VectorWriter]:
    """A writer that is finished at the end of the block, or abandoned where it fails."""
    writer = WRITERS[file_format](OutputFile(name, file), dim)
    try:
        yield writer
        writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _id_column(ids: Sequence[str | int]) -> pa.Array:
    if all(isinstance(i, str) for i in ids):
        try:
            return pa.array(ids, pa.string())
        except UnicodeEncodeError as error:
            raise UsageError(f"an id holds a lone surrogate: {error.object!r:.60}") from error
    if not all(isinstance(i, int) for i in ids):
        raise UsageError(MIXED_IDS)
    try:
        return pa.array(ids, pa.int64())
    except OverflowError as error:
        largest = max(ids, key=lambda i: abs(int(i)))
        raise UsageError(f"id {largest} does not fit Parquet's 64-bit integers") from error
