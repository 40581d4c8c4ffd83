"""JSON lines, plain or compressed: one object a line.

Lines end at LF (a CR before it is white space); blank lines are not rows; a BOM is dropped. A
line that is not UTF-8, not JSON or not an object is a dead letter, and so is one whose id or text
is missing, null or of another type. Types are decided by the whole corpus: ids stay integers
when every id is an integer of 64 bits, and are strings otherwise (7 becomes '7'). A kept column
is int64, double (integers and fractions) or bool where all its values are, and string otherwise:
strings as they are, other values as their JSON text. A key that a row lacks is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.config import SourceConfig
from pipeline.errors import UsageError
from pipeline.source.files import BOM, Files, refuse_other_content
from pipeline.source.rows import (
    INT64_MAX,
    INT64_MIN,
    PieceRows,
    RowCollector,
    SpanBuilder,
    id_problem,
    missing_column,
    nearest,
    text_problem,
)
from pipeline.source.types import ColumnTypes, Piece, SourceFile, Span

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst")
MAX_LINE_BYTES = 256 << 20
_MAX_HINT_KEYS = 1000
_KINDS = {int: "int64", float: "double", bool: "bool", str: "string", list: "json", dict: "json"}
_ARROW = {
    "int64": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "json": pa.string(),
}


def scan(
    files: Files, file: SourceFile, source: SourceConfig, max_rows: int | None
) -> tuple[tuple[Span, ...], ColumnTypes]:
    """Read `file` once: its spans, and the types of its id and kept columns."""
    spans = SpanBuilder(source.rows_per_shard, max_rows)
    columns = (source.id_column, source.text_column, *source.keep_columns)
    kinds: dict[str, set[str]] = {}
    keys: dict[str, None] = {}
    with files.stream(file) as stream:
        refuse_other_content(file, stream, "JSON lines")
        for start, line, raw in _lines(stream, file, start=0, line=1):
            spans.add(start, start + len(raw), line, len(raw))
            row = _parse(raw)
            if isinstance(row, dict):
                if len(keys) < _MAX_HINT_KEYS:
                    keys.update(dict.fromkeys(row))
                for column in columns:
                    if column in row:
                        kinds.setdefault(column, set()).add(_kind(row[column]))
            if spans.full:
                break
    known = list(keys)
    for column in (source.id_column, source.text_column):
        if known and column not in kinds:
            raise missing_column(file.uri, column, nearest(column, known))
    id_type = _arrow_type(kinds.get(source.id_column, set()) & {"int64", "string"})
    kept = {name: _arrow_type(kinds[name]) for name in source.keep_columns if name in kinds}
    missing = tuple(
        (name, nearest(name, known)) for name in source.keep_columns if name not in kinds
    )
    return spans.finish(), ColumnTypes(id_type, kept, missing)


def read(
    files: Files, piece: Piece, source: SourceConfig, schema: pa.Schema, first_row: int
) -> PieceRows:
    """The rows of one piece, with columns of `schema`."""
    rows = RowCollector(schema, first_row)
    id_is_string = pa.types.is_string(schema.field(0).type)
    kept = [(name, schema.field(2 + i).type) for i, name in enumerate(source.keep_columns)]
    with files.stream(piece.file, piece.start, piece.end) as stream:
        for _, line, raw in _lines(stream, piece.file, piece.start, piece.line):
            where = f"{piece.name}:{line}"
            row = _parse(raw)
            if isinstance(row, str):
                rows.reject(where, None, row)
                continue
            id, values = None, []
            text = row.get(source.text_column)
            try:
                id, problem = _checked_id(row, source.id_column, id_is_string)
                if source.text_column not in row:
                    problem = problem or f"missing key {source.text_column!r}"
                values = [_converted(row.get(name), type) for name, type in kept]
                problem = problem or text_problem(text) or _surrogates(raw, (text, *values))
            except RecursionError:
                problem = "nested too deeply"
            if problem is None and id is not None and isinstance(text, str):
                rows.accept(id, text, values)
            else:
                rows.reject(where, id, problem or "null id")
    return rows.finish()


def _lines(
    stream: BinaryIO, file: SourceFile, start: int, line: int
) -> Iterator[tuple[int, int, bytes]]:
    """Offset, line number and bytes of each line that is not blank."""
    for raw in iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""):
        if len(raw) > MAX_LINE_BYTES:
            raise UsageError(
                f"{file.uri}:{line}: a line of more than {MAX_LINE_BYTES >> 20} MiB; "
                "is this JSON lines, one object a line?"
            )
        if start == 0 and raw.startswith(BOM):
            raw = raw[len(BOM) :]
            start = len(BOM)
        if not raw.isspace() and raw:
            yield start, line, raw
        start += len(raw)
        line += 1


def _parse(raw: bytes) -> dict[str, Any] | str:
    """The object of one line, or why it is none."""
    try:
        row = json.loads(raw.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte {error.start} of the line"
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    return row if isinstance(row, dict) else "not a JSON object"


def _checked_id(
    row: dict[str, Any], column: str, as_string: bool
) -> tuple[str | int | None, str | None]:
    """The id of a row, or why it has none."""
    id = row.get(column)
    problem = id_problem(id) if column in row else f"missing key {column!r}"
    if problem is None and isinstance(id, str) and not _is_unicode(id):
        problem = "id holds a lone surrogate, which is not text"
    if problem is not None:
        return None, problem
    return (str(id) if as_string else id), None


def _kind(value: object) -> str:
    """What a value asks of its column; "" when it fits any."""
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        return "string"
    return "" if value is None else _KINDS[type(value)]


def _arrow_type(kinds: set[str]) -> pa.DataType:
    """The type that holds values of all `kinds`."""
    kinds = kinds - {""}
    if not kinds:
        return pa.null()
    if kinds == {"int64", "double"}:
        return pa.float64()
    return _ARROW[kinds.pop()] if len(kinds) == 1 else pa.string()


def _converted(value: object, type: pa.DataType) -> object:
    """A value as its column's type holds it; NaN among strings is null."""
    if value is None:
        return None
    if pa.types.is_string(type):
        if isinstance(value, str):
            return value
        is_nan = isinstance(value, float) and math.isnan(value)
        return None if is_nan else json.dumps(value, ensure_ascii=False)
    return float(value) if pa.types.is_floating(type) and isinstance(value, int) else value


def _surrogates(raw: bytes, values: Iterable[object]) -> str | None:
    """The problem with a row whose escapes make half a character."""
    if b"\\u" not in raw or all(_is_unicode(v) for v in values if isinstance(v, str)):
        return None
    return "a value holds a lone surrogate, which is not text"


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
