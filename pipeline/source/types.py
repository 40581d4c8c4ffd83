"""What a plan is made of, and what reading one shard gives."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from pipeline.errors import RayvecError

MAX_SHARD_TEXT_BYTES = 16 << 20
"""A shard ends before the row that would take it past this many bytes of text."""


class SourceChangedError(RayvecError):
    """An input is not what was planned: the shard that holds it fails, and a new plan is needed."""


class SourceReadError(RayvecError):
    """An input that was planned cannot be read; the message names it and the cause."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file as it was listed."""

    uri: str
    """Where it is: an absolute path, or ``scheme://bucket/key``."""
    name: str
    """Its path relative to the source's root, with ``/``: stable when the corpus moves."""
    size: int
    """Size in bytes."""
    etag: str
    """Changes whenever the content changes."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of whole rows of one file.

    `start` and `end` count bytes of the (decompressed) file in jsonl and csv, rows of the file in
    parquet and python, and bytes of the whole file in text.
    """

    start: int
    end: int
    rows: int
    """Rows in the span, bad ones included."""
    text_bytes: int
    """Bytes of text, measured as cheaply as the format allows."""
    line: int
    """Line of the file at which the span starts, from 1 (parquet: the number of its first row)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one file that belongs to a shard: a SourceFile and a Span of it."""

    uri: str
    name: str
    size: int
    etag: str
    start: int
    end: int
    rows: int
    line: int

    @property
    def file(self) -> SourceFile:
        """The file as it was when the plan was made."""
        return SourceFile(self.uri, self.name, self.size, self.etag)


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit of reading, embedding, writing, retrying and re-use. Picklable and JSON-able."""

    key: str
    """32 hex digits: hash of name, etag and range of each piece, and of the columns read."""
    pieces: tuple[Piece, ...]
    columns: str
    """Output columns `id` and the kept ones with their types: an Arrow schema in base64."""

    @property
    def rows(self) -> int:
        """Rows planned, bad ones included."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table that reading gives: id, text, kept columns, source_row."""
        id_field, *kept = decode_schema(self.columns)
        text = pa.field("text", pa.string())
        return pa.schema([id_field, text, *kept, pa.field("source_row", pa.int64())])

    def to_json(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Shard:
        """The shard that `to_json` wrote."""
        pieces = tuple(Piece(**piece) for piece in values["pieces"])
        return Shard(values["key"], pieces, values["columns"])


@dataclass(frozen=True, slots=True)
class FileScan:
    """What planning learnt about one file; kept beside a plan, it saves reading the file again."""

    name: str
    size: int
    etag: str
    settings: str
    """Hash of the settings that shaped the scan."""
    spans: tuple[Span, ...]
    columns: str
    """Arrow schema, in base64, of `id` and those kept columns that the file has."""
    missing: tuple[tuple[str, str], ...] = ()
    """Kept columns that no row of the file has, each with a hint at the nearest name."""

    @property
    def rows(self) -> int:
        """Rows in the file, bad ones included."""
        return sum(span.rows for span in self.spans)

    def to_json(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> FileScan:
        """The scan that `to_json` wrote."""
        spans = tuple(Span(**span) for span in values["spans"])
        missing = tuple((column, hint) for column, hint in values["missing"])
        return FileScan(**{**values, "spans": spans, "missing": missing})


@dataclass(frozen=True, slots=True)
class Plan:
    """All shards of a corpus, in the order of its files."""

    shards: tuple[Shard, ...]
    num_files: int
    num_rows: int
    """Rows planned, bad ones included."""
    text_bytes: int
    scans: tuple[FileScan, ...]
    """Pass these to the next `plan_shards`: files that did not change are then not read."""


@dataclass(frozen=True, slots=True)
class RowReport:
    """One row that has something to report, and where it is."""

    row: int
    """Row number in its shard, as in the column `source_row`."""
    id: str | int | None
    where: str
    """``file:line``, or ``file:row N`` (from 0) in parquet."""
    reason: str


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of one shard: good ones in `table`, the others in `dead_letters`."""

    table: pa.Table
    """Columns id, text, the kept ones, and source_row (int64, counting every row of the shard)."""
    dead_letters: list[RowReport]
    remarks: list[RowReport]
    """Rows that are in `table` though something about them is odd."""

    @property
    def rows(self) -> int:
        """All rows: good ones and dead letters."""
        return int(self.table.num_rows) + len(self.dead_letters)


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """Arrow types of `id` and of those kept columns that a file has."""

    id: pa.DataType
    kept: dict[str, pa.DataType]
    missing: tuple[tuple[str, str], ...] = ()

    def encode(self) -> str:
        """As the `columns` of a FileScan."""
        return encode_schema(pa.schema([("id", self.id), *self.kept.items()]))


def encode_schema(schema: pa.Schema) -> str:
    """An Arrow schema as base64 text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(columns: str) -> pa.Schema:
    """The schema that `encode_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns)))


def digest(*values: object) -> str:
    """32 hex digits that depend on `values`, which must be JSON-able."""
    text = json.dumps(values, ensure_ascii=True, separators=(",", ":"))
    return blake2b(text.encode("ascii"), digest_size=16).hexdigest()
