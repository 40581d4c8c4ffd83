"""Text files: one .txt or .md file is one row, and its id is its name below the source's root.

A BOM is dropped. A file that is not UTF-8 is a dead letter; a file of 0 bytes is no row.
"""

from __future__ import annotations

import pyarrow as pa

from pipeline.config import SourceConfig
from pipeline.source.files import BOM, Files, is_utf16
from pipeline.source.rows import PieceRows, RowCollector
from pipeline.source.types import ColumnTypes, Piece, SourceFile, Span

SUFFIXES = (".txt", ".md")
COLUMNS: tuple[str, ...] = ()


def scan(
    files: Files, file: SourceFile, source: SourceConfig, max_rows: int | None
) -> tuple[tuple[Span, ...], ColumnTypes]:
    """One span with one row; the file is not read."""
    return (Span(0, file.size, 1, file.size, 1),), ColumnTypes(pa.string(), {})


def read(
    files: Files, piece: Piece, source: SourceConfig, schema: pa.Schema, first_row: int
) -> PieceRows:
    """The one row of a file."""
    rows = RowCollector(schema, first_row)
    where = f"{piece.name}:1"
    with files.stream(piece.file) as stream:
        data = stream.read()
    if is_utf16(data[:64]):
        rows.reject(where, piece.name, "UTF-16 or UTF-32 text; convert it to UTF-8")
        return rows.finish()
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        rows.reject(f"{piece.name}:{line}", piece.name, f"invalid UTF-8 at byte {error.start}")
    else:
        rows.accept(piece.name, text, ())
    return rows.finish()
