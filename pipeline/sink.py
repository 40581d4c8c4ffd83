"""Vectors to storage: one immutable Parquet part for each shard, and the receipt that counts.

A part goes under a name no other attempt has; the shard is done when its receipt is there. The
first receipt wins, so a shard that ran twice has one part that counts and one orphan.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import CHUNK_COLUMNS
from pipeline.errors import UsageError
from pipeline.records import IndexCorruptError, Record, pretty
from pipeline.store import Store

RECEIPT_FORMAT = 1
CONTENT_HASH_TYPE = pa.binary(16)
VECTOR_TYPES: Mapping[str, pa.DataType] = {"float32": pa.float32(), "float16": pa.float16()}
CHUNK_FIELDS = tuple(map(pa.field, CHUNK_COLUMNS, (pa.int32(), pa.int64(), pa.int64())))
_ROW_GROUP_BYTES = 16 << 20
_READ_THREADS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RECEIPT_KEY = re.compile(r"receipts/\d+/[^/]+/([^/]+)/(\d+)\.json")

SourcePiece = Mapping[str, str | int | None]
"""One stretch of one source file: its "name" and what else tells it apart (etag, range, ...)."""


@dataclass(frozen=True)
class DeadLetter:
    """A row that could not be embedded, and why."""

    row: int
    """Row index in the shard."""
    id: str | int | None
    """The row's id, where it has one."""
    where: str
    """File and place in it, for people."""
    reason: str


@dataclass(frozen=True)
class ShardStats:
    """What is known of a shard beside its rows."""

    source: Sequence[SourcePiece]
    """The pieces the rows came from, in order."""
    seconds: Mapping[str, float]
    """Seconds by stage ("read", "embed"); "write" is added here."""


@dataclass(frozen=True)
class Receipt:
    """Says that a shard is done, and what came of it."""

    shard_key: str
    revision: int
    """0 for the first; each retry of the dead letters writes the next."""
    attempt_id: str
    part: str | None
    """Key of the part; None when the shard gave no rows, and then no part is written."""
    size_bytes: int
    sha256: str
    """Of the part's bytes, in hex; empty without a part."""
    rows: int
    columns: Mapping[str, str]
    """Name and Arrow type of every column of the part, in order."""
    dim: int
    vector_type: str
    tokens: int
    seconds: Mapping[str, float]
    dead_letters: tuple[DeadLetter, ...]
    source: tuple[SourcePiece, ...]
    created: str
    """UTC time in ISO 8601."""

    def to_json(self) -> bytes:
        """The receipt as it is stored."""
        fields = {"format": RECEIPT_FORMAT, **vars(self)}
        fields["columns"] = dict(self.columns)
        fields["seconds"] = dict(self.seconds)
        fields["dead_letters"] = [vars(letter) for letter in self.dead_letters]
        fields["source"] = [dict(piece) for piece in self.source]
        return pretty(fields)

    @staticmethod
    def from_json(data: bytes, where: str) -> Receipt:
        """Read a stored receipt; raises IndexCorruptError, naming `where`, unless all is right."""
        record = Record.parse(data, where, format_number=RECEIPT_FORMAT)
        letters = []
        for item in record.records("dead_letters"):
            letters.append(
                DeadLetter(
                    row=item.count("row"),
                    id=cast("str | int | None", item.optional("id", (str, int))),
                    where=item.take("where", str),
                    reason=item.take("reason", str),
                )
            )
            item.done()
        receipt = Receipt(
            shard_key=record.take("shard_key", str),
            revision=record.count("revision"),
            attempt_id=record.take("attempt_id", str),
            part=record.optional("part", str),
            size_bytes=record.count("size_bytes"),
            sha256=record.take("sha256", str),
            rows=record.count("rows"),
            columns=cast("dict[str, str]", record.mapping("columns", (str,))),
            dim=record.count("dim"),
            vector_type=record.take("vector_type", str),
            tokens=record.count("tokens"),
            seconds=cast("dict[str, float]", record.mapping("seconds", (int, float))),
            dead_letters=tuple(letters),
            source=tuple(read_pieces(record)),
            created=record.take("created", str),
        )
        record.done()
        if (receipt.part is None) != (receipt.rows == 0):
            raise IndexCorruptError(f"{where}: {receipt.rows} rows in the part {receipt.part}")
        return receipt


def read_pieces(record: Record) -> list[SourcePiece]:
    """Take the field "source": the pieces a shard was read from."""
    pieces: list[SourcePiece] = []
    for item in record.records("source"):
        name = item.take("name", str)
        rest = cast("dict[str, str | int | None]", item.rest((str, int, type(None))))
        pieces.append({"name": name, **rest})
    return pieces


def part_schema(
    id_type: pa.DataType, keep: pa.Schema, dim: int, vector_type: str, chunked: bool
) -> pa.Schema:
    """The schema of every part: id, chunk columns, kept columns, vector and what is known of it.

    `keep` is the kept columns; chunk_start and chunk_end are character offsets in the row's
    text, chunk_end exclusive. Raises UsageError for an unknown `vector_type`, a `dim` below 1
    and a kept column that has the name of another column.
    """
    if vector_type not in VECTOR_TYPES:
        raise UsageError(f"sink: unknown vector_type {vector_type!r}; known: {list(VECTOR_TYPES)}")
    if dim < 1:
        raise UsageError(f"sink: dim should be at least 1, got {dim}")
    fields = [
        pa.field("id", id_type),
        *(CHUNK_FIELDS if chunked else ()),
        *keep,
        pa.field("vector", pa.list_(VECTOR_TYPES[vector_type], dim)),
        pa.field("n_tokens", pa.int32()),
        pa.field("truncated", pa.bool_()),
        pa.field("content_hash", CONTENT_HASH_TYPE),
    ]
    names = [field.name for field in fields]
    for name in keep.names:
        if names.count(name) > 1:
            raise UsageError(f"sink: the kept column {name!r} has the name of another column")
    return pa.schema(fields)


def hash_content(text: str) -> bytes:
    """The content_hash of `text`: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def vector_columns(schema: pa.Schema) -> tuple[int, str]:
    """(dim, vector_type) of the column "vector"; raises UsageError when it is no vector column."""
    kind: Any = schema.field("vector").type if "vector" in schema.names else None
    for name, value_type in VECTOR_TYPES.items():
        if kind is not None and pa.types.is_fixed_size_list(kind) and kind.value_type == value_type:
            return kind.list_size, name
    raise UsageError(f"sink: wanted a column vector of float32 or float16 lists, got {kind}")


def write_part(
    store: Store,
    shard_key: str,
    epoch: int,
    fingerprint: str,
    table: pa.Table,
    dead_letters: Sequence[DeadLetter],
    stats: ShardStats,
    *,
    revision: int = 0,
) -> Receipt:
    """Store a shard's rows as a part, then its receipt; return the receipt that counts.

    `table` has the columns of `part_schema`; rows keep their order. Where another attempt's
    receipt was there first, that one is returned and the part written here is an orphan. A
    shard without rows gets a receipt and no part.
    """
    start = time.monotonic()
    dim, vector_type = vector_columns(table.schema)
    if not _NAME.fullmatch(shard_key) or not _NAME.fullmatch(fingerprint):
        raise UsageError(f"sink: unusable shard key {shard_key!r} or fingerprint {fingerprint!r}")
    attempt_id = uuid.uuid4().hex
    data = encode_part(table)
    columns = column_types(pq.read_schema(pa.BufferReader(data)))  # as readers will see them
    part = f"parts/{shard_key}-{attempt_id}.parquet" if table.num_rows > 0 else None
    if part is not None:
        store.put(part, data)
    receipt = Receipt(
        shard_key=shard_key,
        revision=revision,
        attempt_id=attempt_id,
        part=part,
        size_bytes=len(data) if part else 0,
        sha256=hashlib.sha256(data).hexdigest() if part else "",
        rows=table.num_rows,
        columns=columns,
        dim=dim,
        vector_type=vector_type,
        tokens=pc.sum(table["n_tokens"]).as_py() or 0,
        seconds={**stats.seconds, "write": time.monotonic() - start},
        dead_letters=tuple(dead_letters),
        source=tuple(stats.source),
        created=utc_now(),
    )
    key = f"receipts/{epoch}/{fingerprint}/{shard_key}/{revision:04d}.json"
    stored = receipt.to_json()
    if store.put_if_absent(key, stored):
        return Receipt.from_json(stored, key)
    return Receipt.from_json(store.get(key), store.uri_of(key))


def encode_part(table: pa.Table) -> bytes:
    """`table` as Parquet: zstd, float32 vectors split by byte, row groups of about 16 MiB."""
    dim, vector_type = vector_columns(table.schema)
    row_bytes = dim * VECTOR_TYPES[vector_type].byte_width
    out = pa.BufferOutputStream()
    pq.write_table(
        table,
        out,
        compression="zstd",
        row_group_size=max(1, _ROW_GROUP_BYTES // row_bytes),
        use_dictionary=[name for name in table.column_names if name != "vector"],
        use_byte_stream_split=["vector.list.element"] if vector_type == "float32" else False,
    )
    return bytes(out.getvalue())


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Name -> Arrow type as text, in order."""
    return {field.name: str(field.type) for field in schema}


def utc_now() -> str:
    """The time now, UTC, ISO 8601."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")


def read_receipts(
    store: Store, epoch: int, fingerprint: str, *, shard_keys: Collection[str] | None = None
) -> dict[str, Receipt]:
    """Shard key -> its receipt of the highest revision, of one epoch and fingerprint.

    With `shard_keys`, only receipts of those shards are read: the place may also hold receipts
    of shards whose files have changed since. Raises IndexCorruptError for a damaged receipt.
    """
    newest: dict[str, tuple[int, str]] = {}
    for info in store.list(f"receipts/{epoch}/{fingerprint}"):
        match = _RECEIPT_KEY.fullmatch(info.key)
        if match is None:
            raise IndexCorruptError(f"{store.uri_of(info.key)}: not the name of a receipt")
        shard_key, revision = match[1], int(match[2])
        if shard_keys is not None and shard_key not in shard_keys:
            continue
        newest[shard_key] = max(newest.get(shard_key, (-1, "")), (revision, info.key))

    def read(item: tuple[str, tuple[int, str]]) -> Receipt:
        shard_key, (revision, key) = item
        receipt = Receipt.from_json(store.get(key), store.uri_of(key))
        if (receipt.shard_key, receipt.revision) != (shard_key, revision):
            raise IndexCorruptError(
                f"{store.uri_of(key)}: it is the receipt of shard {receipt.shard_key} "
                f"revision {receipt.revision}"
            )
        return receipt

    with ThreadPoolExecutor(_READ_THREADS) as pool:
        return {receipt.shard_key: receipt for receipt in pool.map(read, newest.items())}


def count_receipts(store: Store) -> dict[tuple[int, str], set[str]]:
    """(epoch, fingerprint) -> shard keys with a receipt, by the names of the receipts alone."""
    found: dict[tuple[int, str], set[str]] = {}
    for info in store.list("receipts"):
        match = _RECEIPT_KEY.fullmatch(info.key)
        if match is None:
            raise IndexCorruptError(f"{store.uri_of(info.key)}: not the name of a receipt")
        _, epoch, fingerprint, *_ = info.key.split("/")
        found.setdefault((int(epoch), fingerprint), set()).add(match[1])
    return found
