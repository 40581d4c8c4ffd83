"""What planning learnt, kept in the index so that an unchanged file is not read again.

`scans/<fingerprint>` holds the file scans of the last plan (JSON); `ids/<shard key>` the id hashes
of a shard (uint64, little-endian). Each begins with the SHA-256 of the rest. Both can be made again
from the source, so a damaged one is only logged and made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.source import Duplicate, FileScan, Shard, find_duplicates, hash_ids, read_shard
from pipeline.store import ObjectNotFoundError, Store

logger = logging.getLogger(__name__)

HASH = np.dtype("<u8")
DIGEST_BYTES = hashlib.sha256().digest_size


def load_scans(store: Store, fingerprint: str) -> list[FileScan]:
    """The scans of the last plan with this fingerprint; none where there are none."""
    data = _load(store, f"scans/{fingerprint}")
    return [] if data is None else [FileScan.from_json(scan) for scan in json.loads(data)]


def save_scans(store: Store, fingerprint: str, scans: Iterable[FileScan]) -> None:
    """Keep the scans of a plan for the next one."""
    _save(store, f"scans/{fingerprint}", json.dumps([scan.to_json() for scan in scans]).encode())


def _save(store: Store, key: str, data: bytes) -> None:
    store.put(key, hashlib.sha256(data).digest() + data)


def _load(store: Store, key: str) -> bytes | None:
    """What `_save` kept; None where it is not there or damaged."""
    try:
        stored = store.get(key)
    except ObjectNotFoundError:
        return None
    digest, data = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if hashlib.sha256(data).digest() == digest:
        return data
    logger.warning("%s: damaged; it is made again from the source", store.uri_of(key))
    return None


class IdHashes:
    """The id hashes of the shards of one plan, from the index where it has them."""

    def __init__(self, store: Store, config: RunConfig) -> None:
        self._store = store
        self._config = config
        self._new: dict[str, NDArray[np.uint64]] = {}

    def duplicates(self, shards: Iterable[Shard]) -> list[Duplicate]:
        """Every row of the shards whose id an earlier row has, in plan order."""
        by_key = {shard.key: shard for shard in shards}
        return find_duplicates(
            ((key, self._of(shard)) for key, shard in by_key.items()),
            lambda key: self._table(by_key[key]),
        )

    def save(self) -> None:
        """Keep what was hashed for the next plan."""
        for key, hashes in self._new.items():
            _save(self._store, f"ids/{key}", hashes.astype(HASH).tobytes())
        self._new.clear()

    def _of(self, shard: Shard) -> NDArray[np.uint64]:
        data = _load(self._store, f"ids/{shard.key}")
        if data is not None:
            return np.frombuffer(data, HASH).astype(np.uint64)
        hashes = hash_ids(self._table(shard)["id"])
        self._new[shard.key] = hashes
        return hashes

    def _table(self, shard: Shard) -> pa.Table:
        storage = self._config.storage
        return read_shard(
            shard, self._config.source, endpoint=storage.endpoint, region=storage.region
        ).table
