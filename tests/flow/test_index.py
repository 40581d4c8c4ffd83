"""Index: commits that happen once, readers that notice damage, and exact search."""

from __future__ import annotations

import io
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import AlreadyExistsError
from shard_builder import FINGERPRINT, LETTER, commit, make_table, reopen, write_shard

from pipeline import manifest
from pipeline.commit import CommitConflictError, claim
from pipeline.errors import RayvecError, UsageError
from pipeline.index import Index, IndexCorruptError
from pipeline.manifest import Version, head_key
from pipeline.sink import read_receipts
from pipeline.store import Store


def test_a_version_comes_back(filled: Store) -> None:
    index = reopen(filled)
    version = index.version
    assert (version.version, version.epoch, version.rows, version.parts) == (1, 0, 18, 2)
    assert (version.tokens, version.dead_letters) == (54, 1)
    assert version.summary == {"model": "m", "dtype": "float32"}
    assert (index.num_rows, index.dim) == (18, 8)
    assert [entry.shard_key for entry in index.parts()] == ["s1", "s2", "s3"]
    assert list(index.dead_letters()) == [("s1", LETTER)]
    table = pa.Table.from_batches(index.to_batches())
    assert table["id"].to_pylist() == [*range(7), *range(100, 111)]
    want = pa.concat_tables([make_table(range(7)), make_table(range(100, 111))])
    assert table.combine_chunks().equals(want.combine_chunks())
    some = pa.Table.from_batches(index.to_batches(["lang", "id"]))
    assert some.column_names == ["lang", "id"]
    with pytest.raises(UsageError, match="no column 'langs'"):
        next(index.to_batches(["langs"]))
    report = index.verify()
    assert report.ok, report.problems
    assert (report.rows, report.parts, report.orphan_parts, report.duplicate_ids) == (18, 2, 0, 0)


def test_files_are_for_other_readers(filled: Store) -> None:
    files = reopen(filled).files()
    assert len(files) == 2
    assert all(name.startswith(f"{filled.uri}/parts/") for name in files)
    keys = [name.removeprefix(f"{filled.uri}/") for name in files]
    assert sum(pq.read_table(io.BytesIO(filled.get(key))).num_rows for key in keys) == 18


def test_kept_shards_keep_their_parts_and_dead_letters(filled: Store) -> None:
    old = {entry.shard_key: entry for entry in reopen(filled).parts()}
    new = write_shard(filled, "s4", make_table(range(200, 201)), dead_letters=(LETTER, LETTER))
    commit(filled, [new], [old["s1"], old["s2"]], base_version=1)
    index = reopen(filled)
    assert index.version.version == 2
    assert index.parts()[:2] == [old["s1"], old["s2"]]
    assert [key for key, _ in index.dead_letters()] == ["s1", "s4", "s4"]
    assert index.num_rows == 8
    assert index.verify().ok
    assert reopen(filled, 1).num_rows == 18, "old versions stay readable"
    assert [version.version for version in index.versions()] == [1, 2]
    with pytest.raises(RayvecError, match="no version 3; there are 1 to 2"):
        reopen(filled, 3)


def test_many_parts_go_over_several_manifests(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MANIFEST_PARTS", 2)
    receipts = [write_shard(store, f"s{i}", make_table(range(i, i + 1))) for i in range(5)]
    head = commit(store, receipts)
    assert [ref.rows for ref in head.manifests] == [2, 2, 1]
    assert [entry.shard_key for entry in reopen(store).parts()] == [f"s{i}" for i in range(5)]


def test_an_empty_version(store: Store) -> None:
    commit(store)
    index = reopen(store)
    assert (index.num_rows, index.dim, index.files()) == (0, 0, [])
    assert list(index.to_batches()) == []
    assert index.verify().ok


def test_no_index_is_an_error(store: Store) -> None:
    with pytest.raises(RayvecError, match="no version was committed"):
        reopen(store)


def test_the_plan_must_be_covered_exactly(filled: Store) -> None:
    receipts = list(read_receipts(filled, 0, FINGERPRINT).values())
    kept = reopen(filled).parts()
    for problem, plan_keys, some, others in (
        ("1 shards are planned, but neither embedded nor kept: s9", ["s1", "s9"], receipts[:1], []),
        ("2 shards are not in the plan: s2, s3", ["s1"], receipts, []),
        ("1 shards are both embedded and kept: s1", ["s1"], receipts[:1], kept[:1]),
        ("1 shards are planned twice: s1", ["s1", "s1"], receipts[:1], []),
    ):
        with pytest.raises(RayvecError, match=problem):
            commit(filled, some, others, base_version=1, plan_keys=plan_keys)
    assert reopen(filled).version.version == 1


def test_parts_must_fit_together(filled: Store) -> None:
    kept = reopen(filled).parts()
    with pytest.raises(RayvecError, match="cannot be kept in a version with fingerprint other"):
        commit(filled, [], kept, base_version=1, fingerprint="other")
    wide = write_shard(filled, "w", make_table(range(3), dim=9))
    with pytest.raises(RayvecError, match=r"shard w has the columns .* version 1 has"):
        commit(filled, [wide], kept, base_version=1)
    good = write_shard(filled, "g", make_table(range(3)))
    with pytest.raises(RayvecError, match=r"shard w has the columns .* shard g has"):
        commit(filled, [good, wide], base_version=1, plan_keys=["g", "w"])
    with pytest.raises(RayvecError, match="there is no version 2"):
        commit(filled, [good], base_version=2)
    filled.delete(str(good.part))
    with pytest.raises(IndexCorruptError, match="missing; wanted"):
        commit(filled, [good], base_version=1)


def test_one_of_many_commits_wins(filled: Store) -> None:
    receipt = write_shard(filled, "s9", make_table(range(3)))
    gate = threading.Barrier(8)

    def run(_: int) -> Version | CommitConflictError:
        gate.wait()
        try:
            return commit(filled, [receipt], base_version=1)
        except CommitConflictError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(8)))
    (winner,) = [result for result in results if isinstance(result, Version)]
    assert reopen(filled).version == winner
    for result in results:
        if isinstance(result, CommitConflictError):
            assert f"committed version 2 first (at {winner.created}" in str(result)
            assert winner.commit_id in str(result)


def test_a_commit_whose_answer_was_lost_is_a_success(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = write_shard(store, "s1", make_table(range(3)))
    put, link = obstore.put, os.link

    def put_and_lose(*args: object, **options: object) -> object:
        answer = put(*args, **options)  # type: ignore[arg-type]
        if options.get("mode") == "create":
            raise AlreadyExistsError("exists")
        return answer

    def link_and_lose(*args: str) -> None:
        link(*args)
        raise FileExistsError(17, "exists")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", put_and_lose)
        patch.setattr(os, "link", link_and_lose)
        head = commit(store, [receipt])
    assert reopen(store).version == head


def test_a_run_of_an_older_epoch_cannot_commit(store: Store) -> None:
    receipt = write_shard(store, "s1", make_table(range(3)), epoch=1)
    commit(store, [receipt], epoch=1)
    with pytest.raises(CommitConflictError, match="garbage was collected"):
        commit(store, [receipt], base_version=1, epoch=0)


def test_an_edited_head_is_named(filled: Store) -> None:
    key = head_key(1)
    fields = json.loads(filled.get(key))
    for change, message in (
        ({"rows": 19}, "does not match its checksum"),
        ({"summary": {"model": "other"}}, "does not match its checksum"),
        ({"format": 2}, "format 2 was written by a newer rayvec"),
    ):
        filled.put(key, json.dumps(fields | change).encode())
        with pytest.raises(IndexCorruptError, match=message) as caught:
            reopen(filled)
        assert key in str(caught.value)
        assert caught.value.exit_code == 1
    filled.put(key, filled.get(key)[:100])
    with pytest.raises(IndexCorruptError, match="not JSON"):
        reopen(filled)


def test_a_damaged_manifest_is_named(filled: Store) -> None:
    index = reopen(filled)
    key = index.version.manifests[0].key
    data = filled.get(key)
    for damaged in (data[:-1], data[:50] + bytes([data[50] ^ 1]) + data[51:]):
        filled.put(key, damaged)
        with pytest.raises(IndexCorruptError, match=key):
            reopen(filled).parts()
        assert any(key in problem for problem in index.verify().problems)
    filled.delete(key)
    with pytest.raises(IndexCorruptError, match=f"{key}: missing"):
        reopen(filled).files()


def test_a_damaged_part_is_named(filled: Store) -> None:
    index = reopen(filled)
    key = str(index.parts()[2].part)
    data = filled.get(key)
    for damaged, message in (
        (data[:-1], f"{key}: {len(data) - 1} bytes; wanted {len(data)}"),
        (data[:90] + bytes([data[90] ^ 1]) + data[91:], f"{key}: damaged"),
        (None, f"{key}: missing"),
    ):
        if damaged is None:
            filled.delete(key)
        else:
            filled.put(key, damaged)
        with pytest.raises(IndexCorruptError, match=message):
            list(index.to_batches())
        report = index.verify()
        assert message in report.problems[0]
        assert report.rows == 7


def test_verify_counts_orphans_and_finds_double_ids(filled: Store) -> None:
    write_shard(filled, "s1", make_table(range(7)))  # lost to the first receipt
    receipts = read_receipts(filled, 0, FINGERPRINT)
    waiting = write_shard(filled, "waiting", make_table(range(900, 903)))
    again = write_shard(filled, "s4", make_table(range(5, 30)))
    commit(filled, [*receipts.values(), again], base_version=1)
    report = reopen(filled).verify()
    assert report.orphan_parts == 1, f"{waiting.part} has a receipt: it is no orphan"
    assert report.orphan_bytes > 0
    assert report.duplicate_ids == 2
    assert len(report.problems) == 2
    assert all("has the id of a row in" in problem for problem in report.problems)


def test_verify_finds_vectors_that_are_not_finite(store: Store) -> None:
    table = make_table(range(6))
    values = table["vector"].combine_chunks().flatten().to_numpy().copy()
    values[8 * 4 + 1] = np.nan
    vector = pa.FixedSizeListArray.from_arrays(pa.array(values), 8)
    at = table.schema.get_field_index("vector")
    commit(store, [write_shard(store, "s1", table.set_column(at, table.schema.field(at), vector))])
    (problem,) = reopen(store).verify().problems
    assert "the vector of row 4 is not finite" in problem


def test_verify_checks_what_receipts_and_manifests_promise(filled: Store) -> None:
    index = reopen(filled)
    lying = replace(index.version, rows=19, tokens=1)
    assert [p for p in Index(filled, lying).verify().problems if "promises 19 rows" in p]
    receipt = write_shard(filled, "s8", make_table(range(3)))
    filled.delete(str(receipt.part))
    (problem,) = index.verify().problems
    assert "shard s8" in problem
    filled.put(f"receipts/0/{FINGERPRINT}/s8/0000.json", b"{}")
    (problem,) = index.verify().problems
    assert "the field 'format' is missing" in problem


def test_a_place_is_claimed_once(store: Store) -> None:
    identity: dict[str, str | int | float | None] = {
        "id_type": "int64",
        "dim": 8,
        "vector_type": "float32",
    }
    claim(store, identity)
    claim(store, identity)
    with pytest.raises(RayvecError, match="another index: its dim is 8, this run's is 16"):
        claim(store, identity | {"dim": 16})
    with pytest.raises(RayvecError, match="its chunked is None, this run's is 1"):
        claim(store, identity | {"chunked": 1})


def test_a_place_that_holds_something_else_is_refused(store: Store) -> None:
    store.put("a/.DS_Store", b"")
    store.put("photos/cat.jpg", b"x")
    with pytest.raises(UsageError, match=r"not empty and not an index: it holds photos/cat\.jpg"):
        claim(store, {"dim": 8})
    store.delete("photos/cat.jpg")
    claim(store, {"dim": 8})
    store.put("parts/x.parquet", b"")
    store.delete("index.json")
    with pytest.raises(IndexCorruptError, match=r"index\.json: missing"):
        claim(store, {"dim": 8})


def test_claims_race(store: Store) -> None:
    gate = threading.Barrier(6)

    def run(dim: int) -> bool:
        gate.wait()
        try:
            claim(store, {"dim": dim % 2})
        except RayvecError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(run, range(6)))
    assert won in ([True, False] * 3, [False, True] * 3)
