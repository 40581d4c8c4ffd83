"""Rows of one piece, gathered one by one; and what makes a row a dead letter."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.source.types import MAX_SHARD_TEXT_BYTES, RowReport, Span

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_JSON_NAMES = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class PieceRows:
    """The rows of one piece; row numbers count within the shard."""

    table: pa.Table
    dead_letters: list[RowReport]
    remarks: list[RowReport] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """All rows: good ones and dead letters."""
        return int(self.table.num_rows) + len(self.dead_letters)


class RowCollector:
    """Gathers the rows of one piece in order: each call but `remark` is one row of the input."""

    def __init__(self, schema: pa.Schema, first_row: int) -> None:
        self._schema = schema
        self._row = first_row
        self._columns: list[list[Any]] = [[] for _ in schema.names]
        self._dead_letters: list[RowReport] = []
        self._remarks: list[RowReport] = []

    def accept(self, id: str | int, text: str, kept: Iterable[Any]) -> None:
        """A good row; `kept` has one value for each kept column, in their order."""
        for column, value in zip(self._columns, (id, text, *kept, self._row), strict=True):
            column.append(value)
        self._row += 1

    def reject(self, where: str, id: str | int | None, reason: str) -> None:
        """A row that becomes a dead letter."""
        self._dead_letters.append(RowReport(self._row, id, where, reason))
        self._row += 1

    def remark(self, where: str, id: str | int | None, reason: str) -> None:
        """A remark on the row that comes next."""
        self._remarks.append(RowReport(self._row, id, where, reason))

    def finish(self) -> PieceRows:
        """All rows as Arrow columns of the schema's types."""
        arrays = [
            pa.array(values, type=column.type)
            for values, column in zip(self._columns, self._schema, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        return PieceRows(table, self._dead_letters, self._remarks)


class SpanBuilder:
    """Cuts the rows of one file, as they are met, into spans of at most a shard's size."""

    def __init__(self, rows_per_shard: int, max_rows: int | None) -> None:
        self._rows_per_shard = rows_per_shard
        self._left = max_rows
        self._spans: list[Span] = []
        self._start = self._end = self._rows = self._text_bytes = self._line = 0

    @property
    def full(self) -> bool:
        """Whether `max_rows` rows were added."""
        return self._left == 0

    def add(self, start: int, end: int, line: int, text_bytes: int) -> None:
        """Add the next row: its range in the file, its line, and its size."""
        too_big = self._text_bytes + text_bytes > MAX_SHARD_TEXT_BYTES
        if self._rows == self._rows_per_shard or (self._rows and too_big):
            self._close()
        if not self._rows:
            self._start, self._line = start, line
        self._end = end
        self._rows += 1
        self._text_bytes += text_bytes
        if self._left is not None:
            self._left -= 1

    def finish(self) -> tuple[Span, ...]:
        """The spans, in file order."""
        if self._rows:
            self._close()
        return tuple(self._spans)

    def _close(self) -> None:
        self._spans.append(Span(self._start, self._end, self._rows, self._text_bytes, self._line))
        self._rows = self._text_bytes = 0


def text_problem(text: object) -> str | None:
    """Why a text that was read cannot be embedded; None when it is a string."""
    if isinstance(text, str):
        return None
    if text is None:
        return "null text"
    if isinstance(text, float) and math.isnan(text):
        return "text is NaN, not a string"
    return f"text is {_JSON_NAMES[type(text)]}, not a string"


def id_problem(id: object) -> str | None:
    """Why an id that was read cannot name a row; None when it is a string or an integer."""
    if type(id) in (str, int):
        return None
    return "null id" if id is None else f"id is {describe(id)}, not a string or an integer"


def describe(value: object) -> str:
    """A value of JSON, cut to a few words."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def nearest(column: str, known: Sequence[str]) -> str:
    """The end of a message on an unknown column: the nearest known one, or all of them."""
    close = difflib.get_close_matches(column, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(map(repr, known[:12])) or "none"
    return f"its columns: {shown}{', ...' if len(known) > 12 else ''}"


def missing_column(place: str, column: str, hint: str) -> UsageError:
    """The error for a column that a file does not have."""
    return UsageError(f"{place}: no column {column!r}; {hint}")
