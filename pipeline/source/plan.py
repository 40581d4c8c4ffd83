"""From listed files to shards: the same files and the same config give the same shards, always.

A file of more than a quarter of a shard (in rows or in bytes) is cut by itself: its shards depend
on it alone. Smaller files are packed, whole, in the order of their names: a shard ends before the
file that would take it past its size, and after each file whose name hashes to 0 modulo M. M is
what makes shards about half full for files of that size (a power of two, at most 512). So a new
file moves only the shards between two such names, not all that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import pyarrow as pa

from pipeline.config import SourceConfig
from pipeline.errors import UsageError
from pipeline.source.files import Files
from pipeline.source.rows import PieceRows, missing_column, nearest
from pipeline.source.types import (
    MAX_SHARD_TEXT_BYTES,
    ColumnTypes,
    FileScan,
    Piece,
    Plan,
    Shard,
    SourceFile,
    SourceReadError,
    Span,
    decode_schema,
    digest,
    encode_schema,
)

SMALL_FILE_FRACTION = 0.25
MAX_MODULUS = 512
_SCAN_VERSION = 1  # raised when the same settings and file would give another scan


@dataclass(frozen=True, slots=True)
class Format:
    """What a format's module provides."""

    suffixes: tuple[str, ...]
    """Names of its files in a folder, in lower case."""
    scan: Callable[
        [Files, SourceFile, SourceConfig, int | None], tuple[tuple[Span, ...], ColumnTypes]
    ]
    """Spans and types of one file; the last argument is the most rows to plan."""
    read: Callable[[Files, Piece, SourceConfig, pa.Schema, int], PieceRows]
    """Rows of one piece; the last argument is the number of its first row in the shard."""
    columns: tuple[str, ...] | None = None
    """Columns that may be kept, where the format fixes them."""


def make_plan(
    format: Format,
    listed: Sequence[SourceFile],
    source: SourceConfig,
    files: Files,
    known: Iterable[FileScan],
) -> Plan:
    """Scan the listed files, those in `known` excepted, and cut them into shards.

    `source` is normalized. Raises UsageError for a column that is not there, and for a corpus
    without a row.
    """
    settings = _settings(source)
    earlier = {
        (scan.name, scan.size, scan.etag): scan for scan in known if scan.settings == settings
    }
    left = source.limit
    used: list[tuple[SourceFile, FileScan]] = []
    reusable: list[FileScan] = []
    for file in listed:
        if left == 0:
            break
        scan = earlier.get((file.name, file.size, file.etag))
        if scan is None or (left is not None and scan.rows > left):
            scan = _scan_file(format, file, source, files, left, settings)
        if left is None or scan.rows < left:
            reusable.append(scan)
        used.append((file, scan))
        left = None if left is None else left - scan.rows
    schema = _merge([(file.uri, scan) for file, scan in used if scan.rows], source)
    if schema is None:
        raise UsageError(
            f"source.uri: no rows in the {len(listed)} {source.format} file(s) that "
            f"{', '.join(source.uri)} names; the first is {listed[0].uri}"
        )
    columns = encode_schema(schema)
    reading = [source.format, source.id_column, source.text_column]
    reading += [f"{column.name}: {column.type}" for column in schema]
    shards = tuple(
        Shard(digest(reading, [[p.name, p.etag, p.start, p.end] for p in pieces]), pieces, columns)
        for pieces in _cut(used, source.rows_per_shard)
    )
    spans = [span for _, scan in used for span in scan.spans]
    num_rows = sum(span.rows for span in spans)
    return Plan(
        shards, len(used), num_rows, sum(span.text_bytes for span in spans), tuple(reusable)
    )


def normalized(source: SourceConfig, format: Format) -> SourceConfig:
    """`source` without kept columns that the output has anyway (id as id, text as text).

    Raises UsageError where the columns to keep cannot be in one table with id and text.
    """
    if format.columns is not None:
        source = replace(source, id_column="id", text_column="text")
    own = {"id": source.id_column, "text": source.text_column, "source_row": None}
    kept = tuple(name for name in source.keep_columns if own.get(name) != name)
    for column in kept:
        if format.columns is not None and column not in format.columns:
            place = f"source.keep_columns: format {source.format}"
            raise missing_column(place, column, nearest(column, format.columns))
        if column in own:
            raise UsageError(
                f"source.keep_columns: {column!r} is a name of the output's own columns; "
                "rename it in the input"
            )
    if len(set(kept)) < len(kept):
        raise UsageError("source.keep_columns: a column is listed twice")
    return replace(source, keep_columns=kept)


def _settings(source: SourceConfig) -> str:
    return digest(
        _SCAN_VERSION,
        source.format,
        source.id_column,
        source.text_column,
        list(source.keep_columns),
        source.rows_per_shard,
    )


def _scan_file(
    format: Format,
    file: SourceFile,
    source: SourceConfig,
    files: Files,
    max_rows: int | None,
    settings: str,
) -> FileScan:
    spans: tuple[Span, ...] = ()
    types = ColumnTypes(pa.null(), {})
    if file.size > 0:
        try:
            spans, types = format.scan(files, file, source, max_rows)
        except (OSError, pa.ArrowException) as error:
            raise SourceReadError(f"{file.uri}: cannot be read: {error}") from error
    return FileScan(file.name, file.size, file.etag, settings, spans, types.encode(), types.missing)


def _merge(scans: Sequence[tuple[str, FileScan]], source: SourceConfig) -> pa.Schema | None:
    """The types of `id` and the kept columns that hold every file's values; None without files.

    A column that is null everywhere is string. Raises UsageError for types that do not go
    together, and for a kept column that no file has.
    """
    if not scans:
        return None
    first_with: dict[str, str] = {}
    for uri, scan in scans:
        first_with.setdefault(scan.columns, uri)
    merged: dict[str, tuple[pa.DataType, str]] = {}
    for columns, uri in first_with.items():
        for column in decode_schema(columns):
            type, other_uri = merged.get(column.name, (column.type, uri))
            wider = widened(type, column.type)
            if wider is None:
                raise UsageError(
                    f"{uri}: column {column.name!r} is {column.type}, but {type} in {other_uri}"
                )
            merged[column.name] = (wider, other_uri)
    for column in source.keep_columns:
        if column not in merged:
            raise missing_column(scans[0][0], column, dict(scans[0][1].missing)[column])
    order = ("id", *source.keep_columns)
    types = {name: merged[name][0] for name in order}
    return pa.schema([(n, pa.string() if pa.types.is_null(t) else t) for n, t in types.items()])


def widened(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds values of both: null gives way, numbers widen, and numbers, booleans
    and strings together are strings. None where there is no such type."""
    try:
        fields = [pa.schema([("value", one)]), pa.schema([("value", other)])]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.string() if _is_word(one) and _is_word(other) else None


def _is_word(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type)
        or pa.types.is_boolean(type)
        or pa.types.is_integer(type)
        or pa.types.is_floating(type)
    )


def _cut(
    used: Sequence[tuple[SourceFile, FileScan]], rows_per_shard: int
) -> list[tuple[Piece, ...]]:
    """The pieces of each shard, in the order of the shards' first pieces."""
    shards: list[tuple[int, tuple[Piece, ...]]] = []
    pack: list[Piece] = []
    pack_at = pack_rows = pack_bytes = 0
    for index, (file, scan) in enumerate(used):
        weight = max(
            scan.rows / rows_per_shard,
            sum(span.text_bytes for span in scan.spans) / MAX_SHARD_TEXT_BYTES,
        )
        if len(scan.spans) != 1 or weight > SMALL_FILE_FRACTION:
            shards += [(index, (_piece(file, span),)) for span in scan.spans]
            continue
        (span,) = scan.spans
        too_many_rows = pack_rows + span.rows > rows_per_shard
        if pack and (too_many_rows or pack_bytes + span.text_bytes > MAX_SHARD_TEXT_BYTES):
            shards.append((pack_at, tuple(pack)))
            pack = []
        if not pack:
            pack_at, pack_rows, pack_bytes = index, 0, 0
        pack.append(_piece(file, span))
        pack_rows += span.rows
        pack_bytes += span.text_bytes
        if ends_shard(file.name, weight):
            shards.append((pack_at, tuple(pack)))
            pack = []
    if pack:
        shards.append((pack_at, tuple(pack)))
    return [pieces for _, pieces in sorted(shards, key=lambda shard: shard[0])]


def ends_shard(name: str, weight: float) -> bool:
    """Whether a shard of small files ends after this one, which fills `weight` of a shard."""
    modulus = 1
    while modulus < MAX_MODULUS and modulus * 4 * weight <= 1:
        modulus *= 2
    hashed = int.from_bytes(blake2b(name.encode("utf-8"), digest_size=8).digest(), "big")
    return hashed % modulus == 0


def _piece(file: SourceFile, span: Span) -> Piece:
    return Piece(
        file.uri, file.name, file.size, file.etag, span.start, span.end, span.rows, span.line
    )
