"""Parquet files: columns are found by name, shards are row ranges taken from the footer.

The id may be any integer that fits 64 bits with a sign (read as int64) or a string; the text a
string, large string, dictionary of strings, or binary that is UTF-8. Kept columns keep their
types; types that differ between files are widened (null to anything, int32 to int64, int64 to
double), and a mix of numbers, booleans and strings becomes string. Text sizes come from the
footer, so they are those of the encoded column: of a dictionary-encoded column they are too low,
and then `rows_per_shard` is what bounds a shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import SourceConfig
from pipeline.errors import UsageError
from pipeline.source.files import Files
from pipeline.source.rows import PieceRows, missing_column, nearest
from pipeline.source.types import (
    MAX_SHARD_TEXT_BYTES,
    ColumnTypes,
    Piece,
    RowReport,
    SourceFile,
    Span,
)

SUFFIXES = (".parquet", ".pq")
_BATCH_ROWS = 4096


def scan(
    files: Files, file: SourceFile, source: SourceConfig, max_rows: int | None
) -> tuple[tuple[Span, ...], ColumnTypes]:
    """Read the footer of `file`: its spans, and the types of its id and kept columns."""
    with _open(files, file) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        for column in (source.id_column, source.text_column, *source.keep_columns):
            if schema.names.count(column) != 1:
                there = column in schema.names
                hint = "it is there twice" if there else nearest(column, schema.names)
                raise missing_column(file.uri, column, hint)
        text_type = _plain(schema.field(source.text_column).type)
        if not _is_text(text_type):
            raise UsageError(
                f"{file.uri}: column {source.text_column!r} is {text_type}; wanted strings"
            )
        id_type = _id_type(_plain(schema.field(source.id_column).type))
        if id_type is None:
            found = schema.field(source.id_column).type
            raise UsageError(
                f"{file.uri}: column {source.id_column!r} is {found}; wanted integers or strings"
            )
        spans = _spans(metadata, source, max_rows)
        kept = {name: _plain(schema.field(name).type) for name in source.keep_columns}
    return spans, ColumnTypes(id_type, kept)


def read(
    files: Files, piece: Piece, source: SourceConfig, schema: pa.Schema, first_row: int
) -> PieceRows:
    """The rows of one piece, with columns of `schema`."""
    columns = [source.id_column, source.text_column, *source.keep_columns]
    tables: list[pa.Table] = []
    dead_letters: list[RowReport] = []
    with _open(files, piece.file) as parquet:
        row = piece.start
        for batch in _batches(parquet, piece.start, piece.end, list(dict.fromkeys(columns))):
            offset = first_row + row - piece.start
            table, dead = _checked(batch, columns, schema, offset, row, piece.name)
            tables.append(table)
            dead_letters += dead
            row += batch.num_rows
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    return PieceRows(table, dead_letters)


@contextmanager
def _open(files: Files, file: SourceFile) -> Iterator[pq.ParquetFile]:
    with files.arrow_file(file) as handle:
        try:
            parquet = pq.ParquetFile(handle, pre_buffer=True)
        except (pa.ArrowException, OSError) as error:
            handle.seek(0)
            whole = handle.read(4) == b"PAR1"
            raise UsageError(
                f"{file.uri}: {'a broken or cut Parquet file' if whole else 'not a Parquet file'}"
                f" ({' '.join(str(error).split())})"
            ) from error
        with parquet:
            yield parquet


def _spans(
    metadata: pq.FileMetaData, source: SourceConfig, max_rows: int | None
) -> tuple[Span, ...]:
    """Row ranges of at most a shard's size, by the row counts and text sizes of row groups."""
    spans: list[Span] = []
    start, rows, text_bytes = 0, 0, 0.0
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    text_column = paths.index(source.text_column)
    left = metadata.num_rows if max_rows is None else min(max_rows, metadata.num_rows)
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        group_rows = min(group.num_rows, left)
        left -= group_rows
        text_chunk = group.column(text_column).total_uncompressed_size  # bytes as encoded
        row_bytes = text_chunk / max(1, group.num_rows)
        while group_rows > 0:
            room = source.rows_per_shard - rows
            if row_bytes > 0:
                room = min(room, int((MAX_SHARD_TEXT_BYTES - text_bytes) // row_bytes))
            if room <= 0 and rows > 0:
                spans.append(Span(start, start + rows, rows, int(text_bytes), start))
                start, rows, text_bytes = start + rows, 0, 0.0
                continue
            taken = min(group_rows, max(1, room))
            rows += taken
            text_bytes += taken * row_bytes
            group_rows -= taken
    if rows:
        spans.append(Span(start, start + rows, rows, int(text_bytes), start))
    return tuple(spans)


def _batches(
    parquet: pq.ParquetFile, start: int, end: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Rows `start` to `end` of the file; rows of a row group before `start` are decoded too."""
    groups: list[int] = []
    first_of_groups = at = 0
    for index in range(parquet.metadata.num_row_groups):
        below = at
        at += parquet.metadata.row_group(index).num_rows
        if at > start and below < end:
            first_of_groups = first_of_groups if groups else below
            groups.append(index)
    at = first_of_groups
    if not groups:
        return
    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns):
        low, high = max(start - at, 0), min(end - at, batch.num_rows)
        if low < high:
            yield batch.slice(low, high - low)
        at += batch.num_rows
        if at >= end:
            return


def _checked(
    batch: pa.RecordBatch, columns: list[str], schema: pa.Schema, offset: int, row: int, name: str
) -> tuple[pa.Table, list[RowReport]]:
    """Good rows of a batch as a table of `schema`, and the others as dead letters.

    `offset` is the batch's first row in the shard, `row` its first row in the file.
    """
    arrays, problems = [], {}
    for place, column in enumerate(columns):
        type = schema.field(place).type
        array, bad = _converted(batch.column(column), type)
        arrays.append(array)
        problems.update({i: f"invalid UTF-8 in {column!r}" for i in bad if i not in problems})
    for array, label in ((arrays[1], "null text"), (arrays[0], "null id")):
        for i in pc.indices_nonzero(array.is_null()).to_pylist():
            problems.setdefault(i, label)
    source_row = pa.array(range(offset, offset + batch.num_rows), pa.int64())
    table = pa.Table.from_arrays([*arrays, source_row], schema=schema)
    if not problems:
        return table, []
    dead = [
        RowReport(offset + i, arrays[0][i].as_py(), f"{name}:row {row + i}", problems[i])
        for i in sorted(problems)
    ]
    good = pa.array([i not in problems for i in range(batch.num_rows)])
    return table.filter(good), dead


def _converted(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, list[int]]:
    """`array` as `type`, and the places of its strings that are not UTF-8 (null in the result)."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    plain = _plain(array.type)
    if pa.types.is_string(type) and (pa.types.is_string(plain) or pa.types.is_binary(plain)):
        array = array.cast(plain)
        try:
            array = array.cast(type)
            array.validate(full=True)
            return array, []
        except pa.ArrowInvalid:
            return _decoded(array.cast(pa.binary()), type)
    return array.cast(type, safe=not pa.types.is_floating(type)), []


def _decoded(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Binary values as strings, one by one, and the places of those that are not UTF-8."""
    texts: list[str | None] = []
    bad: list[int] = []
    for place, value in enumerate(array.to_pylist()):
        try:
            texts.append(None if value is None else value.decode("utf-8"))
        except UnicodeDecodeError:
            texts.append(None)
            bad.append(place)
    return pa.array(texts, type), bad


def _plain(type: pa.DataType) -> pa.DataType:
    """The type without dictionaries, and in its 32-bit form for strings and bytes."""
    if pa.types.is_dictionary(type):
        return _plain(type.value_type)
    if pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return pa.string()
    if pa.types.is_large_binary(type) or pa.types.is_binary_view(type):
        return pa.binary()
    return type


def _is_text(type: pa.DataType) -> bool:
    return any(test(type) for test in (pa.types.is_string, pa.types.is_binary, pa.types.is_null))


def _id_type(type: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(type):
        return pa.int64()
    if pa.types.is_null(type):
        return type
    return pa.string() if _is_text(type) else None
