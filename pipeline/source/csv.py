"""CSV with a header line, plain or compressed; .tsv is the same with tabs.

Records are those of Python's csv reader with its default rules, quoted newlines included, and
nothing is inferred: '007' stays '007' and 'NA' stays 'NA'. An empty field is null, quoted or not.
A BOM is dropped, and a blank line is not a row. A record with another number of fields than the
header, a quoted field that is never closed and a used field that is not UTF-8 are dead letters. A
quote inside an unquoted field is data, as in Python's reader; such a record gets a remark.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipeline.config import SourceConfig
from pipeline.errors import UsageError
from pipeline.source.files import BOM, Files, refuse_other_content
from pipeline.source.rows import PieceRows, RowCollector, SpanBuilder, missing_column, nearest
from pipeline.source.types import ColumnTypes, Piece, SourceFile, Span

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")
MAX_FIELD_BYTES = 256 << 20
_HEADER_READ_BYTES = 64 << 10
_NUL_STAND_IN = "\u0100"  # not a Latin-1 character; Python 3.10's csv refuses NUL itself
_BOM_TEXT = BOM.decode("latin-1")


@dataclass(frozen=True, slots=True)
class _Record:
    """One record and where it is; its characters are bytes (Latin-1)."""

    fields: list[str]
    start: int
    end: int
    line: int
    problem: str | None
    odd_quotes: bool


def scan(
    files: Files, file: SourceFile, source: SourceConfig, max_rows: int | None
) -> tuple[tuple[Span, ...], ColumnTypes]:
    """Read `file` once: its spans; id and kept columns are strings."""
    spans = SpanBuilder(source.rows_per_shard, max_rows)
    with files.stream(file) as stream:
        refuse_other_content(file, stream, "CSV")
        records = _records(stream, file, 0, 1)
        header = next(records, None)
        if header is not None:
            names = _header_names(header, file)
            for column in (source.id_column, source.text_column, *source.keep_columns):
                if names.count(column) != 1:
                    hint = "it is there twice" if column in names else nearest(column, names)
                    raise missing_column(file.uri, column, hint)
            for record in records:
                spans.add(record.start, record.end, record.line, record.end - record.start)
                if spans.full:
                    break
    kept = {name: pa.string() for name in source.keep_columns}
    return spans.finish(), ColumnTypes(pa.string(), kept)


def read(
    files: Files, piece: Piece, source: SourceConfig, schema: pa.Schema, first_row: int
) -> PieceRows:
    """The rows of one piece, with columns of `schema`."""
    rows = RowCollector(schema, first_row)
    with files.stream(piece.file, read_bytes=_HEADER_READ_BYTES) as stream:
        names = _header_names(next(_records(stream, piece.file, 0, 1)), piece.file)
    wanted = (source.id_column, source.text_column, *source.keep_columns)
    places = [names.index(column) for column in wanted]
    with files.stream(piece.file, piece.start, piece.end) as stream:
        for record in _records(stream, piece.file, piece.start, piece.line):
            where = f"{piece.name}:{record.line}"
            problem = record.problem
            if problem is None and len(record.fields) != len(names):
                problem = f"{len(record.fields)} fields where the header has {len(names)}"
            if problem is not None:
                rows.reject(where, None, problem)
                continue
            values: list[str | None] = []
            for column, place in zip(wanted, places, strict=True):
                try:
                    values.append(_decode(record.fields[place]) or None)
                except UnicodeDecodeError as error:
                    values.append(None)
                    at = f"byte {error.start} of {column!r}"
                    problem = problem or f"invalid UTF-8 at {at}"
            id, text, *kept = values
            if problem is None and id is not None and text is not None:
                if record.odd_quotes:
                    rows.remark(where, id, "a quote inside an unquoted field, kept as it is")
                rows.accept(id, text, kept)
            else:
                rows.reject(where, id, problem or ("null id" if id is None else "null text"))
    return rows.finish()


class _Lines:
    """The physical lines of a stream as Latin-1 text, with a count of what was taken.

    Lines end at LF, CR or CRLF, as in a file opened with ``newline=""``.
    """

    def __init__(self, stream: io.BufferedReader, file: SourceFile, start: int, line: int) -> None:
        self.offset = start
        self.line = line
        self.quotes = 0
        self.ended = False
        self._file = file
        self._text = io.TextIOWrapper(stream, encoding="latin-1", newline="")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = self._text.readline(MAX_FIELD_BYTES + 1)
        if not text:
            self.ended = True
            raise StopIteration
        if len(text) > MAX_FIELD_BYTES:
            raise UsageError(
                f"{self._file.uri}:{self.line}: a line of more than {MAX_FIELD_BYTES >> 20} MiB; "
                "is this CSV?"
            )
        if self.offset == 0 and text.startswith(_BOM_TEXT):
            self.offset = len(BOM)
            text = text[len(BOM) :]
        self.offset += len(text)
        self.line += 1
        self.quotes += text.count('"')
        return text.replace("\0", _NUL_STAND_IN) if "\0" in text else text


def _records(
    stream: io.BufferedReader, file: SourceFile, start: int, line: int
) -> Iterator[_Record]:
    """The records of a stream that starts at a record's start."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_BYTES))
    delimiter = "\t" if ".tsv" in file.name.lower()[-8:] else ","
    lines = _Lines(stream, file, start, line)
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        start, line, lines.quotes = lines.offset, lines.line, 0
        fields: list[str] = []
        problem = None
        try:
            fields = next(reader)
            if not fields:
                continue
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"not CSV: {error}"
        if lines.ended:
            problem = "a quoted field is never closed"
        yield _Record(fields, start, lines.offset, line, problem, lines.quotes % 2 == 1)


def _header_names(header: _Record, file: SourceFile) -> list[str]:
    if header.problem is not None:
        raise UsageError(f"{file.uri}:{header.line}: the header line: {header.problem}")
    try:
        return [_decode(name) for name in header.fields]
    except UnicodeDecodeError as error:
        raise UsageError(f"{file.uri}: the header line is not UTF-8: {error}") from error


def _decode(field: str) -> str:
    """The text of a field; raises UnicodeDecodeError where its bytes are not UTF-8."""
    if field.isascii():
        return field
    return field.replace(_NUL_STAND_IN, "\0").encode("latin-1").decode("utf-8")
