"""Index: read, search and check one committed version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RayvecError, UsageError
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
from pipeline.sink import DeadLetter, column_types
from pipeline.store import Store
from pipeline.verify import VerifyReport, verify_version

__all__ = ["Hit", "Index", "IndexCorruptError", "Metric", "PartEntry", "Version"]

BLOCK_ROWS = 16_384
"""Rows scored at a time by a search."""
Metric = Literal["cosine", "dot", "euclidean"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One row that a search found."""

    score: float
    """Larger is nearer: the cosine, the dot product, or minus the euclidean distance."""
    row: dict[str, object]
    """The row's columns, without its vector."""
    part: str
    """Key of the part that holds the row."""


class Index:
    """One version of an index; later commits do not change what it reads."""

    def __init__(self, store: Store, version: Version) -> None:
        self.store = store
        self.version = version
        self._parts: list[PartEntry] | None = None

    @staticmethod
    def open(
        uri: str,
        version: int | None = None,
        *,
        endpoint: str | None = None,
        region: str | None = None,
    ) -> Index:
        """Open `version` of the index at `uri`; the newest by default.

        Raises RayvecError where there is no such version, IndexCorruptError for a bad head, and
        StoreError where the place cannot be read.
        """
        store = Store.open(uri, endpoint=endpoint, region=region)
        numbers = version_numbers(store)
        if not numbers:
            raise RayvecError(f"{store.uri}: no index here: no version was committed")
        if version is not None and version not in numbers:
            known = f"{numbers[0]} to {numbers[-1]}"
            raise RayvecError(f"{store.uri}: no version {version}; there are {known}")
        return Index(store, read_version(store, numbers[-1] if version is None else version))

    @property
    def num_rows(self) -> int:
        """Rows (vectors) of this version."""
        return self.version.rows

    @property
    def dim(self) -> int:
        """Length of a vector; 0 for a version without any shard."""
        return self.version.dim

    def versions(self) -> list[Version]:
        """Every version of this index, oldest first."""
        return [read_version(self.store, number) for number in version_numbers(self.store)]

    def parts(self) -> list[PartEntry]:
        """The shards of this version in the order of its plan, empty ones included."""
        if self._parts is None:
            parts = list(read_parts(self.store, self.version))
            rows = sum(entry.rows for entry in parts)
            count = sum(entry.part is not None for entry in parts)
            if (rows, count) != (self.version.rows, self.version.parts):
                raise IndexCorruptError(
                    f"{self.store.uri}: version {self.version.version} promises "
                    f"{self.version.parts} parts with {self.version.rows} rows, its manifests "
                    f"list {count} with {rows}"
                )
            self._parts = parts
        return self._parts

    def files(self) -> list[str]:
        """The uris of this version's Parquet files, for any other reader."""
        return [self.store.uri_of(entry.part) for entry in self.parts() if entry.part is not None]

    def dead_letters(self) -> Iterator[tuple[str, DeadLetter]]:
        """(shard key, dead letter) pairs in the order of the plan; ids as text."""
        return read_letters(self.store, self.version)

    def to_batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in the order of the plan, a part in memory at a time.

        `columns` chooses columns and their order. Raises UsageError for an unknown column and
        IndexCorruptError, naming it, for a part that is missing or damaged.
        """
        for _, batch in self._batches(columns, BLOCK_ROWS):
            yield batch

    def search(
        self, vector: npt.NDArray[np.float32], k: int, *, metric: Metric = "cosine"
    ) -> list[Hit]:
        """The `k` rows nearest to `vector` (dim,), the nearest first: exact, every row is scored.

        Of equally near rows the earlier one comes first. Scores are float32. Memory holds one
        part and a block of BLOCK_ROWS rows. Raises UsageError for a bad vector, k or metric.
        """
        query = np.asarray(vector, np.float32)
        if metric not in get_args(Metric):
            raise UsageError(f"search: unknown metric {metric!r}; known: {get_args(Metric)}")
        if query.shape != (self.dim,) or not np.isfinite(query).all():
            raise UsageError(
                f"search: wanted a finite vector of shape ({self.dim},), got shape {query.shape}"
            )
        if k < 1:
            raise UsageError(f"search: k should be at least 1, got {k}")
        best: list[Hit] = []
        for entry, batch in self._batches(None, BLOCK_ROWS):
            scores = _score(vectors_of(batch), query, metric)  # (rows,)
            rows = batch.drop_columns(["vector"])
            for at in _nearest(scores, k):
                if len(best) == k and scores[at] <= best[-1].score:
                    break
                row = rows.slice(int(at), 1).to_pylist()[0]
                best.append(Hit(float(scores[at]), row, str(entry.part)))
                best.sort(key=lambda hit: -hit.score)
                del best[k:]
        return best

    def verify(self) -> VerifyReport:
        """Read and check everything this version names; see `verify_version`."""
        return verify_version(self.store, self.version)

    def _batches(
        self, columns: Sequence[str] | None, batch_rows: int
    ) -> Iterator[tuple[PartEntry, Any]]:
        known = self.version.columns
        for name in columns or ():
            if name not in known and known:
                raise UsageError(f"{self.store.uri}: no column {name!r}; there are {list(known)}")
        for entry in self.parts():
            if entry.part is not None:
                data = fetch(self.store, entry.part, entry.size_bytes, entry.sha256)
                file = pq.ParquetFile(pa.BufferReader(data))
                if column_types(file.schema_arrow) != dict(known):
                    raise IndexCorruptError(
                        f"{self.store.uri_of(entry.part)}: its columns are not the version's"
                    )
                for batch in file.iter_batches(batch_rows, columns=columns):
                    yield entry, batch if columns is None else batch.select(columns)


def vectors_of(batch: Any) -> npt.NDArray[np.float32]:
    """The column "vector" of a record batch as (rows, dim) float32."""
    column = batch.column("vector")
    flat: npt.NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), column.type.list_size).astype(np.float32, copy=False)


def _score(
    vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], metric: Metric
) -> npt.NDArray[np.float32]:
    """Nearness of each of `vectors` (rows, dim) to `query` (dim,): (rows,), NaN becomes -inf."""
    if metric == "euclidean":
        scores = -np.linalg.norm(vectors - query, axis=1)  # (rows,)
    elif metric == "dot":
        scores = vectors @ query  # (rows,)
    else:
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)  # (rows,)
        scores = (vectors @ query) / np.maximum(norms, np.finfo(np.float32).tiny)  # (rows,)
    return np.where(np.isnan(scores), -np.inf, scores).astype(np.float32)


def _nearest(scores: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.intp]:
    """Positions of the `k` largest of `scores` (rows,), largest first, ties by position."""
    candidates = np.arange(len(scores))
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = np.flatnonzero(scores >= least)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:k]
