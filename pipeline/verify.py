"""Check a version of an index: every byte it names, every row, and what else lies around."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.manifest import (
    PartEntry,
    Version,
    fetch,
    read_letters,
    read_parts,
    read_version,
    version_numbers,
)
from pipeline.records import IndexCorruptError
from pipeline.sink import Receipt, column_types
from pipeline.store import ObjectInfo, Store

_BATCH_ROWS = 16_384
_BUCKET_BYTES = 64 << 20
_MAX_BUCKETS = 256
_EXAMPLES = 5
_READ_THREADS = 16
T = TypeVar("T")
_SPILL = np.dtype([("high", "<u8"), ("low", "<u8"), ("part", "<u4"), ("row", "<u4")])


@dataclass(frozen=True)
class VerifyReport:
    """What a check found."""

    version: int
    parts: int
    """Parts read."""
    rows: int
    """Rows read from parts that are sound."""
    problems: tuple[str, ...]
    """Everything that is wrong, each by name; empty for a sound version."""
    duplicate_ids: int
    """Rows whose id (with its chunk_index, where chunked) an earlier row has."""
    orphan_parts: int
    """Parts that no version and no receipt names: left by attempts that lost; harmless."""
    orphan_bytes: int

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


def verify_version(store: Store, version: Version) -> VerifyReport:
    """Read every part of `version` and check what its head, manifests and receipts promise.

    Checked: size, SHA-256, row count, columns and finite vectors of each part; totals; ids that
    occur twice; the heads and manifests of all other versions; receipts and the parts they name.
    Memory holds one part and about 64 MiB of hashed ids (more above some 700 million rows); the
    other hashes, 24 bytes a row, lie in a temporary folder. Raises StoreError when the place
    cannot be read; what is wrong with the index itself is in the report.
    """
    problems: list[str] = []
    entries = _listed(read_parts(store, version), problems)
    rows = parts = 0
    with tempfile.TemporaryDirectory(prefix="rayvec-verify-") as folder:
        ids = _IdSpill(Path(folder), sum(entry.rows for entry in entries))
        for at, entry in enumerate(entries):
            if entry.part is not None:
                parts += 1
                try:
                    rows += _check_part(store, version, entry, at, ids)
                except IndexCorruptError as error:
                    problems.append(str(error))
        duplicate_ids, examples = ids.duplicates()
    for part, row, earlier in examples:
        problems.append(
            f"{store.uri_of(str(entries[part].part))}: row {row} has the id of a row in "
            f"{entries[earlier].part}"
        )
    if duplicate_ids > len(examples):
        problems.append(f"{store.uri}: {duplicate_ids} rows have the id of an earlier row")
    dead_letters = sum(entry.dead_letters for entry in entries)
    letters = _listed(read_letters(store, version), problems)
    for name, found, wanted in (
        ("rows", sum(entry.rows for entry in entries), version.rows),
        ("parts", parts, version.parts),
        ("tokens", sum(entry.tokens for entry in entries), version.tokens),
        ("dead letters", dead_letters, version.dead_letters),
        ("listed dead letters", len(letters), version.dead_letters),
    ):
        if found != wanted:
            problems.append(
                f"{store.uri}: version {version.version} promises {wanted} {name}, its manifests "
                f"list {found}"
            )
    orphans = _orphans(store, version, entries, problems)
    return VerifyReport(
        version=version.version,
        parts=parts,
        rows=rows,
        problems=tuple(problems),
        duplicate_ids=duplicate_ids,
        orphan_parts=len(orphans),
        orphan_bytes=sum(orphans),
    )


def _listed(items: Iterator[T], problems: list[str]) -> list[T]:
    """All that `items` gives before it fails; the failure goes to `problems`."""
    found = []
    try:
        for item in items:
            found.append(item)
    except IndexCorruptError as error:
        problems.append(str(error))
    return found


def _check_part(store: Store, version: Version, entry: PartEntry, at: int, ids: _IdSpill) -> int:
    """Check one part, spill its ids, return its rows; raises IndexCorruptError."""
    where = store.uri_of(str(entry.part))
    data = fetch(store, str(entry.part), entry.size_bytes, entry.sha256)
    file = pq.ParquetFile(pa.BufferReader(data))
    if file.metadata.num_rows != entry.rows:
        raise IndexCorruptError(f"{where}: {file.metadata.num_rows} rows; wanted {entry.rows}")
    found, wanted = column_types(file.schema_arrow), dict(version.columns)
    if found != wanted:
        raise IndexCorruptError(f"{where}: its columns are {found}; wanted {wanted}")
    first = 0
    for batch in file.iter_batches(_BATCH_ROWS):
        vectors = batch.column("vector")
        flat = vectors.flatten().to_numpy(zero_copy_only=False)
        if vectors.null_count or batch.column("id").null_count:
            raise IndexCorruptError(f"{where}: a row without an id or a vector")
        if not np.isfinite(flat).all():
            row = first + int(np.flatnonzero(~np.isfinite(flat))[0]) // version.dim
            raise IndexCorruptError(f"{where}: the vector of row {row} is not finite")
        ids.add(batch, at, first)
        first += batch.num_rows
    return first


def _orphans(
    store: Store, version: Version, entries: list[PartEntry], problems: list[str]
) -> list[int]:
    """Sizes in bytes of the parts nothing names; checks other heads, and receipts, on the way."""
    named = {entry.part for entry in entries}
    for number in version_numbers(store):
        if number != version.version:
            try:
                others = read_parts(store, read_version(store, number))
            except IndexCorruptError as error:
                problems.append(str(error))
                continue
            named.update(entry.part for entry in _listed(others, problems))
    sizes = {info.key: info.size for info in store.list("parts")}

    def read(info: ObjectInfo) -> Receipt | IndexCorruptError:
        try:
            return Receipt.from_json(store.get(info.key), store.uri_of(info.key))
        except IndexCorruptError as error:
            return error

    with ThreadPoolExecutor(_READ_THREADS) as pool:
        for receipt in pool.map(read, store.list("receipts")):
            if isinstance(receipt, IndexCorruptError):
                problems.append(str(receipt))
                continue
            if receipt.part is not None and sizes.get(receipt.part) != receipt.size_bytes:
                problems.append(
                    f"{store.uri_of(receipt.part)}: missing or of another size than its receipt "
                    f"(shard {receipt.shard_key}, revision {receipt.revision}) says"
                )
            named.add(receipt.part)
    return [size for key, size in sizes.items() if key not in named]


class _IdSpill:
    """Finds ids that occur twice, in bounded memory: hashes of 128 bits, split over files."""

    def __init__(self, folder: Path, rows: int) -> None:
        wanted = -(-rows * _SPILL.itemsize // _BUCKET_BYTES)
        self._buckets = min(_MAX_BUCKETS, max(1, wanted))
        self._paths = [folder / f"{bucket}.ids" for bucket in range(self._buckets)]

    def add(self, batch: Any, part: int, first_row: int) -> None:
        """Remember the ids of `batch`, rows `first_row` on of the part number `part`."""
        ids = batch.column("id").to_pylist()
        if "chunk_index" in batch.schema.names:
            ids = list(zip(ids, batch.column("chunk_index").to_pylist(), strict=True))
        hashes = b"".join(
            hashlib.blake2b(repr(value).encode(), digest_size=16).digest() for value in ids
        )
        spill = np.empty(len(ids), _SPILL)
        pairs = np.frombuffer(hashes, "<u8").reshape(-1, 2)  # (rows, 2)
        spill["high"], spill["low"] = pairs[:, 0], pairs[:, 1]
        spill["part"], spill["row"] = part, np.arange(first_row, first_row + len(ids))
        bucket_of = spill["high"] % np.uint64(self._buckets)
        for bucket in np.unique(bucket_of):
            with open(self._paths[int(bucket)], "ab") as file:
                file.write(spill[bucket_of == bucket].tobytes())

    def duplicates(self) -> tuple[int, list[tuple[int, int, int]]]:
        """Number of rows with an earlier row's id, and some as (part, row, part of the earlier)."""
        count = 0
        examples: list[tuple[int, int, int]] = []
        for path in self._paths:
            if not path.exists():
                continue
            spill: npt.NDArray[np.void] = np.fromfile(path, _SPILL)
            spill = spill[np.lexsort((spill["row"], spill["part"], spill["low"], spill["high"]))]
            same = (spill["high"][1:] == spill["high"][:-1]) & (
                spill["low"][1:] == spill["low"][:-1]
            )
            count += int(same.sum())
            for at in np.flatnonzero(same)[: _EXAMPLES - len(examples)]:
                earlier, later = spill[at], spill[at + 1]
                examples.append((int(later["part"]), int(later["row"]), int(earlier["part"])))
        return count, examples
