"""Ids that are in the corpus twice, and what each policy makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from source_corpus import config, write_jsonl

from pipeline.errors import UsageError
from pipeline.source import (
    Duplicate,
    ShardRows,
    apply_duplicates,
    duplicates_error,
    find_duplicates,
    hash_ids,
    plan_shards,
    read_shard,
)


def table(ids: list[str] | list[int]) -> pa.Table:
    return pa.table({"id": ids, "text": ["t"] * len(ids), "source_row": range(len(ids))})


def find(tables: dict[str, pa.Table], **keys: int) -> list[Duplicate]:
    loaded: list[str] = []

    def load(key: str) -> pa.Table:
        loaded.append(key)
        return tables[key]

    found = find_duplicates(((k, hash_ids(t["id"])) for k, t in tables.items()), load, **keys)
    assert len(loaded) == len(set(loaded))
    return found


def test_later_rows_are_found_in_plan_order() -> None:
    tables = {"s0": table(["a", "b", "a"]), "s1": table([]), "s2": table(["c", "b", "a"])}
    want = [
        Duplicate("a", "s0", 2, "s0", 0),
        Duplicate("b", "s2", 1, "s0", 1),
        Duplicate("a", "s2", 2, "s0", 0),
    ]
    for pass_rows in (1, 2, 100):
        assert find(tables, pass_rows=pass_rows) == want
    assert find({}) == []
    assert find({"s": table([1, 2, 3])}) == []


def test_only_shards_where_hashes_met_are_loaded_and_ids_decide() -> None:
    same = np.array([7, 8], np.uint64)
    tables = {"s0": table(["a", "b"]), "s1": table(["c", "d"]), "s2": table(["a", "e"])}
    loaded: list[str] = []

    def load(key: str) -> pa.Table:
        loaded.append(key)
        return tables[key]

    hashes = [("s0", same), ("s1", np.array([1, 2], np.uint64)), ("s2", same)]
    assert find_duplicates(hashes, load) == [Duplicate("a", "s2", 0, "s0", 0)]
    assert loaded == ["s0", "s2"]


def test_random_ids_agree_with_a_dictionary() -> None:
    rng = np.random.default_rng(5)
    tables = {f"s{i}": table(rng.integers(0, 3000, 500).tolist()) for i in range(6)}
    seen: dict[int, tuple[str, int]] = {}
    want = []
    for key, rows in tables.items():
        for row, id in enumerate(rows["id"].to_pylist()):
            if id in seen:
                want.append(Duplicate(id, key, row, *seen[id]))
            seen.setdefault(id, (key, row))
    assert find(tables, pass_rows=700) == want


def test_the_policies_over_a_corpus(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"id": i, "text": f"a{i}"} for i in (1, 2, 3)])
    lines = [{"id": 4, "text": "b4"}, {"id": 2, "text": None}, {"id": 2, "text": "b2"}]
    write_jsonl(tmp_path / "b.jsonl", lines)
    source = config("jsonl", tmp_path, rows_per_shard=4)
    plan = plan_shards(source)
    read = {shard.key: read_shard(shard, source) for shard in plan.shards}
    assert len(read) == 2
    hashes = [(key, hash_ids(rows.table["id"])) for key, rows in read.items()]
    found = find_duplicates(hashes, lambda key: read[key].table)
    assert [(d.id, d.row) for d in found] == [(2, 2)]
    message = str(duplicates_error(found, plan))
    assert "1 row(s) have the id of an earlier row: 2 in a.jsonl:1 (row 1 from there)" in message
    assert "and in b.jsonl:1 (row 2 from there)" in message

    def texts(policy: str) -> list[str]:
        return [
            text
            for shard in plan.shards
            for text in applied(shard, policy).table["text"].to_pylist()
        ]

    def applied(shard: object, policy: str) -> ShardRows:
        return apply_duplicates(read[shard.key], shard, found, policy)  # type: ignore[attr-defined,arg-type]

    assert texts("keep_first") == texts("dead_letter") == ["a1", "a2", "a3", "b4"]
    assert applied(plan.shards[0], "fail") is read[plan.shards[0].key]
    last = plan.shards[1]
    assert [r.row for r in applied(last, "keep_first").dead_letters] == [1]
    reports = applied(last, "dead_letter").dead_letters
    assert [(r.row, r.id, r.reason) for r in reports] == [
        (1, 2, "null text"),
        (2, 2, "the id of an earlier row"),
    ]
    with pytest.raises(UsageError, match="in the corpus twice"):
        applied(last, "fail")
