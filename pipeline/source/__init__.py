"""Sources: which rows there are, cut into shards, and the rows of one shard.

`plan_shards` lists and cuts; `read_shard` reads one shard, in any process. One module for each
format provides `scan` and `read`; FORMATS is the table of them. `find_duplicates` finds ids that
are in the corpus twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from pipeline.config import SourceConfig
from pipeline.errors import UsageError
from pipeline.source import csv, jsonl, parquet, python, text
from pipeline.source.duplicates import (
    Duplicate,
    apply_duplicates,
    duplicates_error,
    find_duplicates,
    hash_ids,
)
from pipeline.source.files import Files
from pipeline.source.listing import list_files
from pipeline.source.plan import Format, make_plan, normalized
from pipeline.source.types import (
    FileScan,
    Piece,
    Plan,
    RowReport,
    Shard,
    ShardRows,
    SourceChangedError,
    SourceReadError,
)
from pipeline.store import StoreError

__all__ = [
    "FORMATS",
    "Duplicate",
    "FileScan",
    "Piece",
    "Plan",
    "RowReport",
    "Shard",
    "ShardRows",
    "SourceChangedError",
    "SourceReadError",
    "apply_duplicates",
    "duplicates_error",
    "find_duplicates",
    "hash_ids",
    "plan_shards",
    "read_shard",
]

FORMATS = {
    "parquet": Format(parquet.SUFFIXES, parquet.scan, parquet.read),
    "jsonl": Format(jsonl.SUFFIXES, jsonl.scan, jsonl.read),
    "csv": Format(csv.SUFFIXES, csv.scan, csv.read),
    "text": Format(text.SUFFIXES, text.scan, text.read, text.COLUMNS),
    "python": Format(python.SUFFIXES, python.scan, python.read, python.COLUMNS),
}


def plan_shards(
    source: SourceConfig,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    known: Iterable[FileScan] = (),
) -> Plan:
    """List the source's files and cut them into shards; nothing but the inputs decides.

    Parquet is planned from footers, text from the listing; jsonl, csv and python files are read
    once, in bounded memory, except those whose scan is in `known` (`Plan.scans` of an earlier
    plan) with the same name, size and etag. `source.limit` keeps the first rows in the order of
    files. `endpoint` and `region` are those of the store.

    Raises UsageError when no file is matched, a column is missing, a file is of another format or
    there are no rows; SourceReadError and StoreError when a file cannot be read.
    """
    format = FORMATS[source.format]
    source = normalized(_with_uris(source), format)
    files = Files(endpoint, region)
    return make_plan(format, list_files(source.uri, format.suffixes, files), source, files, known)


def read_shard(
    shard: Shard, source: SourceConfig, *, endpoint: str | None = None, region: str | None = None
) -> ShardRows:
    """Read one shard of a plan made with the same `source`.

    Rows are in the order of the files; each is in the table or among the dead letters. Raises
    SourceChangedError when a file is not what was planned, and SourceReadError when it cannot be
    read.
    """
    format = FORMATS[source.format]
    source = normalized(source, format)
    files = Files(endpoint, region)
    schema = shard.schema
    tables = [schema.empty_table()]
    dead_letters: list[RowReport] = []
    remarks: list[RowReport] = []
    row = 0
    for piece in shard.pieces:
        try:
            found = format.read(files, piece, source, schema, row)
        except (OSError, pa.ArrowException, StoreError, UsageError) as error:
            files.check_unchanged(piece)
            raise SourceReadError(f"{piece.uri}: cannot be read: {error}") from error
        files.check_unchanged(piece)
        if found.rows != piece.rows:
            raise SourceChangedError(
                f"{piece.uri}: {found.rows} rows where the plan counted {piece.rows}"
            )
        tables.append(found.table)
        dead_letters += found.dead_letters
        remarks += found.remarks
        row += piece.rows
    return ShardRows(pa.concat_tables(tables).combine_chunks(), dead_letters, remarks)


def _with_uris(source: SourceConfig) -> SourceConfig:
    """The same source; one uri given as a string becomes a tuple of one."""
    return replace(source, uri=(source.uri,)) if isinstance(source.uri, str) else source
