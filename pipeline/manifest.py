"""What a version of an index is made of: a JSON head, and the Parquet lists it names.

heads/00000001.json        one small head for each version; never changed, never removed
manifests/<uuid>.parquet   immutable lists of parts, and of dead letters
parts/  receipts/          see sink.py
index.json                 what the place holds; see commit.py
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.records import IndexCorruptError, Record, canonical, pretty
from pipeline.sink import DeadLetter, Receipt, SourcePiece, read_pieces
from pipeline.store import ObjectNotFoundError, Store

HEAD_FORMAT = 1
MANIFEST_PARTS = 10_000
"""Parts in one manifest file."""
_HEAD_KEY = re.compile(r"heads/(\d{8})\.json")
_PART_FIELDS = pa.schema(
    [
        ("shard_key", pa.string()),
        ("part", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("tokens", pa.int64()),
        ("dead_letters", pa.int64()),
        ("source", pa.string()),
    ]
)
_LETTER_FIELDS = pa.schema(
    [
        ("shard_key", pa.string()),
        ("row", pa.int64()),
        ("id", pa.string()),
        ("where", pa.string()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One shard of a version: its part and what the receipt said of it."""

    shard_key: str
    part: str | None
    """Key of the part; None for a shard that gave no rows."""
    rows: int
    size_bytes: int
    sha256: str
    tokens: int
    dead_letters: int
    source: tuple[SourcePiece, ...]

    @staticmethod
    def of(receipt: Receipt) -> PartEntry:
        """The entry for a shard that `receipt` says is done."""
        return PartEntry(
            shard_key=receipt.shard_key,
            part=receipt.part,
            rows=receipt.rows,
            size_bytes=receipt.size_bytes,
            sha256=receipt.sha256,
            tokens=receipt.tokens,
            dead_letters=len(receipt.dead_letters),
            source=receipt.source,
        )


@dataclass(frozen=True, slots=True)
class FileRef:
    """An immutable object that a head names."""

    key: str
    size_bytes: int
    sha256: str
    rows: int


@dataclass(frozen=True)
class Version:
    """One committed version: the content of its head."""

    version: int
    epoch: int
    fingerprint: str
    created: str
    """UTC time in ISO 8601."""
    commit_id: str
    """Random; tells this commit from any other."""
    summary: Mapping[str, object]
    """What the caller says of the run: model, dtype and the like."""
    columns: Mapping[str, str]
    """Name and Arrow type of every column of the parts, in order; empty without any shard."""
    dim: int
    """0 for a version without any shard."""
    vector_type: str
    parts: int
    rows: int
    tokens: int
    dead_letters: int
    manifests: tuple[FileRef, ...]
    dead_letters_file: FileRef | None

    def to_json(self) -> bytes:
        """The head as it is stored, with its checksum."""
        fields: dict[str, object] = {"format": HEAD_FORMAT, **vars(self)}
        fields["summary"] = dict(self.summary)
        fields["columns"] = list(self.columns.items())
        fields["manifests"] = [_ref_fields(ref) for ref in self.manifests]
        letters = self.dead_letters_file
        fields["dead_letters_file"] = None if letters is None else _ref_fields(letters)
        fields["checksum"] = hashlib.sha256(canonical(fields)).hexdigest()
        return pretty(fields)

    @staticmethod
    def from_json(data: bytes, where: str) -> Version:
        """Read a head; raises IndexCorruptError, naming `where`, unless all is right."""
        record = Record.parse(data, where, format_number=HEAD_FORMAT)
        checksum = record.take("checksum", str)
        fields = json.loads(data)
        del fields["checksum"]
        if hashlib.sha256(canonical(fields)).hexdigest() != checksum:
            raise IndexCorruptError(
                f"{where}: the head does not match its checksum; it was edited or damaged"
            )
        letters = record.optional("dead_letters_file", dict)
        head = Version(
            version=record.count("version"),
            epoch=record.count("epoch"),
            fingerprint=record.take("fingerprint", str),
            created=record.take("created", str),
            commit_id=record.take("commit_id", str),
            summary=cast("dict[str, object]", record.take("summary", dict)),
            columns=dict(record.take("columns", list)),
            dim=record.count("dim"),
            vector_type=record.take("vector_type", str),
            parts=record.count("parts"),
            rows=record.count("rows"),
            tokens=record.count("tokens"),
            dead_letters=record.count("dead_letters"),
            manifests=tuple(_read_ref(item) for item in record.records("manifests")),
            dead_letters_file=None if letters is None else _read_ref(Record(letters, where)),
        )
        record.done()
        return head


def head_key(version: int) -> str:
    """Key of the head of `version`."""
    return f"heads/{version:08d}.json"


def version_numbers(store: Store) -> list[int]:
    """The numbers of all versions, ascending."""
    numbers = []
    for info in store.list("heads"):
        match = _HEAD_KEY.fullmatch(info.key)
        if match is None:
            raise IndexCorruptError(f"{store.uri_of(info.key)}: not the name of a head")
        numbers.append(int(match[1]))
    return sorted(numbers)


def read_version(store: Store, version: int) -> Version:
    """The head of `version`. Raises IndexCorruptError unless it is there and sound."""
    key = head_key(version)
    try:
        head = Version.from_json(store.get(key), store.uri_of(key))
    except ObjectNotFoundError as error:
        raise IndexCorruptError(f"{store.uri_of(key)}: the head is missing") from error
    if head.version != version:
        raise IndexCorruptError(f"{store.uri_of(key)}: it is the head of version {head.version}")
    return head


def current_version(store: Store) -> Version | None:
    """The newest version, or None where nothing was committed yet."""
    numbers = version_numbers(store)
    return read_version(store, numbers[-1]) if numbers else None


def fetch(store: Store, key: str, size_bytes: int, sha256: str) -> bytes:
    """The content of an immutable object; raises IndexCorruptError when it is not as promised."""
    where = store.uri_of(key)
    try:
        data = store.get(key)
    except ObjectNotFoundError as error:
        raise IndexCorruptError(f"{where}: missing") from error
    if len(data) != size_bytes:
        raise IndexCorruptError(f"{where}: {len(data)} bytes; wanted {size_bytes}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise IndexCorruptError(f"{where}: damaged: its SHA-256 is not {sha256}")
    return data


def write_parts(store: Store, entries: Sequence[PartEntry]) -> tuple[FileRef, ...]:
    """Store `entries`, in order, as manifest files of at most MANIFEST_PARTS parts."""
    refs = []
    for at in range(0, len(entries), MANIFEST_PARTS):
        rows = [
            {
                **{name: getattr(entry, name) for name in _PART_FIELDS.names},
                "source": json.dumps([dict(piece) for piece in entry.source]),
            }
            for entry in entries[at : at + MANIFEST_PARTS]
        ]
        refs.append(_write_table(store, pa.Table.from_pylist(rows, schema=_PART_FIELDS)))
    return tuple(refs)


def read_parts(store: Store, head: Version) -> Iterator[PartEntry]:
    """The parts that `head` names, in the order of its plan, one manifest in memory at a time."""
    for ref in head.manifests:
        where = store.uri_of(ref.key)
        for row in _read_table(store, ref, _PART_FIELDS).to_pylist():
            source = Record({"source": json.loads(row.pop("source"))}, where)
            yield PartEntry(**row, source=tuple(read_pieces(source)))


def write_letters(store: Store, letters: Sequence[tuple[str, DeadLetter]]) -> FileRef | None:
    """Store (shard key, dead letter) pairs as one file; None for none."""
    if not letters:
        return None
    rows = [
        {
            "shard_key": shard_key,
            "row": letter.row,
            "id": None if letter.id is None else str(letter.id),
            "where": letter.where,
            "reason": letter.reason,
        }
        for shard_key, letter in letters
    ]
    return _write_table(store, pa.Table.from_pylist(rows, schema=_LETTER_FIELDS))


def read_letters(store: Store, head: Version) -> Iterator[tuple[str, DeadLetter]]:
    """(shard key, dead letter) pairs of a version; ids are text here, whatever they were."""
    if head.dead_letters_file is not None:
        for batch in _read_table(store, head.dead_letters_file, _LETTER_FIELDS).to_batches():
            for row in batch.to_pylist():
                yield row.pop("shard_key"), DeadLetter(**row)


def _write_table(store: Store, table: pa.Table) -> FileRef:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    data = bytes(out.getvalue())
    key = f"manifests/{uuid.uuid4().hex}.parquet"
    store.put(key, data)
    return FileRef(key, len(data), hashlib.sha256(data).hexdigest(), table.num_rows)


def _read_table(store: Store, ref: FileRef, schema: pa.Schema) -> Any:
    data = fetch(store, ref.key, ref.size_bytes, ref.sha256)
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    if not table.schema.equals(schema) or table.num_rows != ref.rows:
        raise IndexCorruptError(f"{store.uri_of(ref.key)}: not the list the head names")
    return table


def _ref_fields(ref: FileRef) -> dict[str, object]:
    return {
        "key": ref.key,
        "size_bytes": ref.size_bytes,
        "sha256": ref.sha256,
        "rows": ref.rows,
    }


def _read_ref(record: Record) -> FileRef:
    ref = FileRef(
        key=record.take("key", str),
        size_bytes=record.count("size_bytes"),
        sha256=record.take("sha256", str),
        rows=record.count("rows"),
    )
    record.done()
    return ref
