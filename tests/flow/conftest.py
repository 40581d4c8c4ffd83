"""Stores to test on: a local folder, and a real S3 server on the loopback interface."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from config_file import load, refuse, write  # noqa: F401
from shard_builder import LETTER, commit, make_table, write_shard

from pipeline.store import Store
from tests.object_store import BUCKET


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty place of its own for each test, on each kind of storage."""
    if request.param == "local":
        return Store.open(str(tmp_path / "place"))
    endpoint = request.getfixturevalue("s3_endpoint")
    return Store.open(f"s3://{BUCKET}/{uuid.uuid4().hex}", endpoint=endpoint)


@pytest.fixture
def filled(store: Store) -> Store:
    """Version 1: shards of 7, 0 and 11 rows, ids 0-6 and 100-110, one dead letter."""
    receipts = [
        write_shard(store, "s1", make_table(range(7)), dead_letters=(LETTER,)),
        write_shard(store, "s2", make_table(range(0))),
        write_shard(store, "s3", make_table(range(100, 111))),
    ]
    commit(store, receipts)
    return store
