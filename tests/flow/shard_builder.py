"""Small shards, and indexes made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipeline.commit import commit_version
from pipeline.index import Index
from pipeline.manifest import PartEntry, Version
from pipeline.sink import DeadLetter, Receipt, ShardStats, hash_content, part_schema, write_part
from pipeline.store import Store

FINGERPRINT = "f00d"
LETTER = DeadLetter(row=1, id="x", where="a:2", reason="empty text")


def make_table(
    ids: range, dim: int = 8, *, vector_type: str = "float32", chunked: bool = False
) -> pa.Table:
    """Rows whose vectors are random but follow from the ids alone."""
    schema = part_schema(pa.int64(), pa.schema([("lang", pa.string())]), dim, vector_type, chunked)
    vectors = np.random.default_rng(ids.start).standard_normal((len(ids), dim))
    values = pa.array(vectors.astype(vector_type).reshape(-1))
    columns = {
        "id": list(ids),
        "chunk_index": [0] * len(ids),
        "chunk_start": [0] * len(ids),
        "chunk_end": [5] * len(ids),
        "lang": ["en" if i % 2 else "de" for i in ids],
        "vector": pa.FixedSizeListArray.from_arrays(values, dim),
        "n_tokens": [3] * len(ids),
        "truncated": [False] * len(ids),
        "content_hash": [hash_content(str(i)) for i in ids],
    }
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def write_shard(
    store: Store,
    shard_key: str,
    table: pa.Table,
    *,
    dead_letters: tuple[DeadLetter, ...] = (),
    epoch: int = 0,
    revision: int = 0,
) -> Receipt:
    """Write one shard as a run does."""
    stats = ShardStats([{"name": f"{shard_key}.txt", "start": 0}], {"read": 0.5, "embed": 1.5})
    return write_part(
        store, shard_key, epoch, FINGERPRINT, table, dead_letters, stats, revision=revision
    )


def commit(
    store: Store,
    receipts: Sequence[Receipt] = (),
    kept: Sequence[PartEntry] = (),
    *,
    base_version: int = 0,
    epoch: int = 0,
    fingerprint: str = FINGERPRINT,
    plan_keys: Sequence[str] | None = None,
) -> Version:
    """Commit shards in the order of their keys."""
    by_key = {receipt.shard_key: receipt for receipt in receipts}
    kept_by_key: Mapping[str, PartEntry] = {entry.shard_key: entry for entry in kept}
    return commit_version(
        store,
        plan_keys=sorted([*by_key, *kept_by_key]) if plan_keys is None else plan_keys,
        receipts=by_key,
        kept=kept_by_key,
        epoch=epoch,
        fingerprint=fingerprint,
        summary={"model": "m", "dtype": "float32"},
        base_version=base_version,
    )


def reopen(store: Store, version: int | None = None) -> Index:
    """The index at `store`, opened by uri."""
    endpoint = store.__reduce__()[1][1]  # type: ignore[index]
    return Index.open(store.uri, version, endpoint=endpoint)
