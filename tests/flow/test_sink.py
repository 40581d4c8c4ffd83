"""Parts and receipts: what is written, which attempt counts, and who can read it."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shard_builder import FINGERPRINT, make_table, write_shard

from pipeline.errors import UsageError
from pipeline.records import IndexCorruptError
from pipeline.sink import DeadLetter, Receipt, part_schema, read_receipts
from pipeline.store import Store

LETTER = DeadLetter(row=7, id="doc-7", where="a.jsonl:8", reason="empty text")


def test_a_part_comes_back_and_its_receipt_is_right(store: Store) -> None:
    table = make_table(range(1023))
    receipt = write_shard(store, "s1", table, dead_letters=(LETTER,))
    assert receipt.part is not None
    data = store.get(receipt.part)
    assert pq.read_table(io.BytesIO(data)).equals(table)
    assert receipt.size_bytes == len(data)
    assert receipt.sha256 == hashlib.sha256(data).hexdigest()
    assert (receipt.rows, receipt.dim, receipt.vector_type) == (1023, 8, "float32")
    assert receipt.tokens == 3 * 1023
    assert set(receipt.seconds) == {"read", "embed", "write"}
    assert receipt.dead_letters == (LETTER,)
    assert receipt.source == ({"name": "s1.txt", "start": 0},)
    assert list(receipt.columns) == table.column_names
    assert read_receipts(store, 0, FINGERPRINT) == {"s1": receipt}


@pytest.mark.parametrize("vector_type", ["float32", "float16"])
@pytest.mark.parametrize("chunked", [False, True])
def test_parts_are_read_without_rayvec(store: Store, vector_type: str, chunked: bool) -> None:
    table = make_table(range(10, 17), dim=5, vector_type=vector_type, chunked=chunked)
    receipt = write_shard(store, "s1", table)
    data = io.BytesIO(store.get(str(receipt.part)))
    kind = pq.read_schema(data).field("vector").type
    assert kind == pa.list_(getattr(pa, vector_type)(), 5)
    frame = pd.read_parquet(data)
    assert list(frame.columns) == table.column_names
    assert frame["id"].tolist() == list(range(10, 17))
    want = table["vector"].combine_chunks().flatten().to_numpy().reshape(7, 5)
    np.testing.assert_array_equal(np.stack(frame["vector"].tolist()), want)
    encodings = (
        pq.ParquetFile(data).metadata.row_group(0).column(table.schema.names.index("vector"))
    )
    assert ("BYTE_STREAM_SPLIT" in encodings.encodings) == (vector_type == "float32")


def test_row_groups_are_bounded(store: Store) -> None:
    table = make_table(range(3000), dim=4096)
    data = store.get(str(write_shard(store, "s1", table).part))
    assert pq.ParquetFile(io.BytesIO(data)).metadata.num_row_groups == 3


def test_the_first_receipt_wins_and_the_other_part_is_an_orphan(store: Store) -> None:
    first = write_shard(store, "s1", make_table(range(3)))
    second = write_shard(store, "s1", make_table(range(3)))
    assert second == first
    assert len(list(store.list("parts"))) == 2
    assert read_receipts(store, 0, FINGERPRINT) == {"s1": first}


def test_a_shard_without_rows_has_a_receipt_and_no_part(store: Store) -> None:
    receipt = write_shard(store, "s1", make_table(range(0)), dead_letters=(LETTER,))
    assert (receipt.part, receipt.rows, receipt.size_bytes, receipt.tokens) == (None, 0, 0, 0)
    assert receipt.dim == 8
    assert list(store.list("parts")) == []
    assert read_receipts(store, 0, FINGERPRINT) == {"s1": receipt}


def test_the_highest_revision_counts_and_other_shards_can_be_left_out(store: Store) -> None:
    for revision in (0, 1, 2):
        write_shard(store, "s1", make_table(range(revision + 1)), revision=revision)
    write_shard(store, "s2", make_table(range(5)))
    write_shard(store, "s2", make_table(range(5)), epoch=1)
    found = read_receipts(store, 0, FINGERPRINT)
    assert {key: (r.revision, r.rows) for key, r in found.items()} == {"s1": (2, 3), "s2": (0, 5)}
    assert list(read_receipts(store, 0, FINGERPRINT, shard_keys={"s2"})) == ["s2"]
    assert read_receipts(store, 0, "other") == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": "3"}, "'rows' has an unexpected value '3'"),
        ({"rows": -1}, "'rows' is negative"),
        ({"rows": True}, "'rows' has an unexpected value True"),
        ({"extra": 1}, "unknown field 'extra'"),
        ({"format": 2}, "newer rayvec"),
        ({"part": None}, "rows in the part None"),
        ({"shard_key": "s2"}, "receipt of shard s2"),
        ({"dead_letters": [{"row": 1}]}, "the field 'id' is missing"),
        ({"source": [{"start": 1}]}, "the field 'name' is missing"),
    ],
)
def test_a_changed_receipt_is_named(store: Store, change: dict[str, object], message: str) -> None:
    write_shard(store, "s1", make_table(range(3)))
    key = next(store.list("receipts")).key
    store.put(key, json.dumps(json.loads(store.get(key)) | change).encode())
    with pytest.raises(IndexCorruptError, match=message) as caught:
        read_receipts(store, 0, FINGERPRINT)
    assert key in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null"])
def test_a_receipt_that_is_not_json_is_named(store: Store, data: bytes) -> None:
    store.put(f"receipts/0/{FINGERPRINT}/s1/0000.json", data)
    with pytest.raises(IndexCorruptError, match=r"s1/0000\.json"):
        read_receipts(store, 0, FINGERPRINT)


def test_receipts_survive_json(store: Store) -> None:
    letters = (LETTER, replace(LETTER, id=7), replace(LETTER, id=None, reason='ü"\n'))
    receipt = write_shard(store, "s1", make_table(range(3)), dead_letters=letters)
    assert receipt.dead_letters == letters
    assert Receipt.from_json(receipt.to_json(), "here") == receipt


def test_bad_input_is_refused(store: Store) -> None:
    keep = pa.schema([("vector", pa.string())])
    with pytest.raises(UsageError, match="kept column 'vector'"):
        part_schema(pa.int64(), keep, 4, "float32", False)
    with pytest.raises(UsageError, match="unknown vector_type 'int4'"):
        part_schema(pa.int64(), pa.schema([]), 4, "int4", False)
    with pytest.raises(UsageError, match="dim should be at least 1"):
        part_schema(pa.int64(), pa.schema([]), 0, "float32", False)
    with pytest.raises(UsageError, match="unusable shard key 'a/b'"):
        write_shard(store, "a/b", make_table(range(3)))
    lists = pa.table({"id": [1], "vector": [[1.0]], "n_tokens": [1]})
    with pytest.raises(UsageError, match="wanted a column vector"):
        write_shard(store, "s1", lists)
    assert list(store.list()) == []
