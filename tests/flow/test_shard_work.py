"""One shard through its three stages, called in sequence in one process."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_builder import GOOD, run_config
from source_corpus import write_jsonl

from pipeline import Embedder, shard_work
from pipeline.backends import LocalFolder
from pipeline.embedder import open_configured
from pipeline.shard_work import Payload, ShardEmbedder, ShardReader, ShardTask, ShardWriter
from pipeline.sink import hash_content, read_receipts
from pipeline.source import Duplicate, plan_shards
from pipeline.store import Store
from tests.models.folders import TinyBert, build

LONG = {"id": 3, "text": "word " * 30}
SET_ASIDE = {"model": {"max_seq_len": 8}, "failure": {"too_long": "dead_letter"}}


def only_task(config, dropped=()):
    (shard,) = plan_shards(config.source).shards
    return ShardTask.of(shard, dropped, config.source.duplicates)


def stages(config, task=None, *, embedder=None):
    """What each stage makes of a shard, carried between them as rows of plain values."""
    read = ShardReader(config)(ShardTask.from_json((task or only_task(config)).to_json()))
    with embedder or open_configured(config, driver="numpy", dtype="float32") as opened:
        embedded = ShardEmbedder(config, opened)(Payload.from_row(read.to_row()))
    return read, embedded, ShardWriter(config, 3, "f00d")(Payload.from_row(embedded.to_row()))


def outcome(config, task=None, *, embedder=None):
    """The receipt and the part of a shard that was done."""
    *_, written = stages(config, task, embedder=embedder)
    assert written.failure is None
    store = Store.open(config.sink.uri)
    (receipt,) = read_receipts(store, 3, "f00d", shard_keys={written.work_key}).values()
    if receipt.part is None:
        return receipt, None
    return receipt, pq.read_table(os.path.join(config.sink.uri, receipt.part))


def vectors_of(table):
    column = table["vector"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), -1)


def spans_of(table):
    names = ("chunk_index", "chunk_start", "chunk_end")
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def tire(monkeypatch):
    """(operation, times) -> the waits there will be, while a storage's operation fails so often."""
    waits = []
    monkeypatch.setattr(shard_work, "RETRY_SECONDS", 0.25)
    monkeypatch.setattr(shard_work.time, "sleep", waits.append)

    def fail(operation, times):
        real, left = getattr(LocalFolder, operation), [times]

        def tired(self, *arguments):
            if left[0] > 0:
                left[0] -= 1
                raise OSError(errno.EIO, "the store is tired")
            return real(self, *arguments)

        monkeypatch.setattr(LocalFolder, operation, tired)
        return waits

    return fail


# ---- what travels


def test_a_payload_comes_back_from_its_row_as_it_was(tmp_path):
    config = run_config(tmp_path, [*GOOD, {"id": 9, "text": None}])
    for payload in (*stages(config), Payload("key", [], failure="read: gone")):
        row = payload.to_row()
        assert {type(value) for value in row.values()} == {str, bytes}
        assert Payload.from_row(row) == payload


def test_a_task_comes_back_from_json_as_it_was(tmp_path):
    dropped = (Duplicate("a", "one", 1, "first", 0), Duplicate(7, "one", 2, "first", 1))
    task = only_task(run_config(tmp_path, GOOD), dropped)
    assert ShardTask.from_json(task.to_json()) == task


def test_dropped_rows_and_their_policy_are_part_of_a_shards_name(tmp_path):
    (shard,) = plan_shards(run_config(tmp_path, GOOD).source).shards
    one, other = (Duplicate("a", shard.key, row, "first", 0) for row in (1, 2))
    cases = [((), "keep_first"), ((one,), "keep_first"), ((other,), "keep_first")]
    cases += [((one, other), "keep_first"), ((one,), "dead_letter")]
    names = [ShardTask.of(shard, dropped, policy).work_key for dropped, policy in cases]
    assert names[0] == shard.key
    assert len(set(names)) == len(names)


def test_each_stage_adds_its_seconds(tmp_path):
    config = run_config(tmp_path, GOOD)
    read, embedded, written = stages(config)
    assert list(read.seconds) == ["read"]
    assert list(embedded.seconds) == ["read", "embed"]
    assert list(written.seconds) == ["read", "embed", "write"]
    assert written.table == b""


# ---- parts


def test_rows_reach_the_part_in_order_with_the_embedders_vectors(tmp_path):
    rows = [{"id": f"n{i}", "text": "long " * (i * 7 % 11)} for i in range(23)]
    config = run_config(tmp_path, rows)
    task = only_task(config)
    receipt, table = outcome(config, task)
    texts = [row["text"] for row in rows]
    with Embedder.open(config.model.path, driver="numpy") as embedder:
        want = embedder.embed(texts)
    assert table["id"].to_pylist() == [row["id"] for row in rows]
    assert np.array_equal(vectors_of(table), want.vectors)
    assert table["n_tokens"].to_pylist() == want.tokens.tolist()
    assert table["truncated"].to_pylist() == [False] * 23
    assert table["content_hash"].to_pylist() == [hash_content(text) for text in texts]
    assert (receipt.rows, receipt.tokens) == (23, want.tokens.sum())
    (piece,) = receipt.source
    assert (piece["name"], piece["rows"]) == ("rows.jsonl", 23)
    assert receipt.shard_key == task.work_key
    assert set(receipt.seconds) == {"read", "embed", "write"}


def test_float16_vectors_are_the_float32_ones_rounded_once(tmp_path):
    _, full = outcome(run_config(tmp_path, GOOD))
    there = {"uri": str(tmp_path / "half"), "vector_type": "float16"}
    _, half = outcome(run_config(tmp_path, sink=there))
    assert vectors_of(half).dtype == np.float16
    assert np.array_equal(vectors_of(half), vectors_of(full).astype(np.float16))


def test_kept_columns_may_be_the_id_and_the_text(tmp_path):
    rows = [{"key": i, "body": f"cat {i}", "lang": "en"} for i in range(3)]
    columns = {"id_column": "key", "text_column": "body", "keep_columns": ("key", "body", "lang")}
    _, table = outcome(run_config(tmp_path, rows, source=columns))
    assert table["id"].to_pylist() == table["key"].to_pylist() == [0, 1, 2]
    assert table["body"].to_pylist() == ["cat 0", "cat 1", "cat 2"]
    assert table["lang"].to_pylist() == ["en"] * 3
    assert not {"text", "source_row"} & set(table.column_names)


def test_a_column_named_text_is_kept_where_it_is_asked_for(tmp_path):
    _, table = outcome(run_config(tmp_path, GOOD, source={"keep_columns": ("text",)}))
    assert table["text"].to_pylist() == [row["text"] for row in GOOD]
    _, table = outcome(run_config(tmp_path, sink={"uri": str(tmp_path / "without")}))
    assert "text" not in table.column_names


@pytest.mark.parametrize("chunking", [{}, {"max_tokens": 4}], ids=["rows", "chunks"])
@pytest.mark.parametrize("text", ["", " \n "], ids=["empty", "blank"])
def test_a_text_without_tokens_is_a_row_like_any_other(tmp_path, text, chunking):
    config = run_config(tmp_path, [{"id": "x", "text": text}], chunking=chunking)
    _, table = outcome(config)
    with Embedder.open(config.model.path, driver="numpy") as embedder:
        assert np.array_equal(vectors_of(table), embedder.encode([text]))
    assert table["n_tokens"].to_pylist() == [2]
    assert not chunking or spans_of(table) == [(0, 0, len(text))]


@pytest.mark.parametrize("chunking", [{}, {"max_tokens": 4}], ids=["rows", "chunks"])
def test_a_shard_without_a_good_row_has_a_receipt_with_the_columns_of_others(tmp_path, chunking):
    bad = [{"id": 1, "text": None}, {"id": 2, "text": 5}]
    empty, no_part = outcome(run_config(tmp_path, bad, chunking=chunking))
    assert (no_part, empty.rows, empty.tokens) == (None, 0, 0)
    assert [letter.row for letter in empty.dead_letters] == [0, 1]
    full, _ = outcome(run_config(tmp_path, GOOD, chunking=chunking))
    assert list(empty.columns.items()) == list(full.columns.items())


# ---- dead letters


def test_dead_letters_name_their_file_line_and_reason(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"id": 5, "text": "cat"}\n\nnot json\n{"id": 6}\n')
    receipt, _ = outcome(run_config(tmp_path))
    places = [(letter.row, letter.id, letter.where) for letter in receipt.dead_letters]
    assert places == [(1, None, "rows.jsonl:3"), (2, 6, "rows.jsonl:4")]
    reasons = [letter.reason for letter in receipt.dead_letters]
    assert reasons[0].startswith("not JSON: ")
    assert reasons[1] == "missing key 'text'"


def test_a_text_too_long_names_its_file_and_row_beside_rows_that_were_not_read(tmp_path):
    rows = [*GOOD, LONG, {"id": 4, "text": None}, {"id": 5, "text": "two"}]
    receipt, table = outcome(run_config(tmp_path, rows, **SET_ASIDE))
    letters = {letter.row: letter for letter in receipt.dead_letters}
    assert sorted(letters) == [3, 4]
    assert letters[3].where == "rows.jsonl: row 3 of the shard"
    assert letters[3].reason == "more than 8 tokens, the limit of this run"
    assert letters[4].where == "rows.jsonl:5"
    assert table["id"].to_pylist() == [0, 1, 2, 5]


def test_a_text_too_long_in_a_packed_shard_names_the_file_it_is_in(tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(40):
        texts = ["cat", LONG["text"] if number % 3 == 0 else "dog"]
        rows = [{"id": f"{number}-{row}", "text": text} for row, text in enumerate(texts)]
        write_jsonl(tmp_path / "many" / f"{number}.jsonl", rows)
    config = run_config(tmp_path, source={"uri": (str(tmp_path / "many"),)}, **SET_ASIDE)
    shards = plan_shards(config.source).shards
    assert max(len(shard.pieces) for shard in shards) > 2
    named = {}
    for shard in shards:
        receipt, _ = outcome(config, ShardTask.of(shard, (), "fail"))
        named |= {letter.id: letter.where.split(":")[0] for letter in receipt.dead_letters}
    assert named == {f"{number}-1": f"{number}.jsonl" for number in range(0, 40, 3)}


@pytest.mark.parametrize(("policy", "rows"), [("keep_first", []), ("dead_letter", [(1, 1)])])
def test_dropped_duplicates_are_gone_or_become_dead_letters(tmp_path, policy, rows):
    config = run_config(tmp_path, GOOD, source={"duplicates": policy})
    dropped = (Duplicate(1, only_task(config).shard.key, 1, "other", 0),)
    receipt, table = outcome(config, only_task(config, dropped))
    assert [(letter.row, letter.id) for letter in receipt.dead_letters] == rows
    assert table["id"].to_pylist() == [0, 2]


# ---- failures are data


def test_a_source_that_changed_fails_the_shard_and_later_stages_pass_it_on(tmp_path, tire):
    task = only_task(run_config(tmp_path, GOOD))
    config, waits = run_config(tmp_path, GOOD * 2), tire("put", 0)
    read, embedded, written = stages(config, task)
    assert read.failure.startswith(f"read: {tmp_path}/rows.jsonl: changed since the plan was made")
    assert read.failure == embedded.failure == written.failure
    assert (read.table, written.table, waits) == (b"", b"", [])
    assert not os.path.exists(config.sink.uri)


@pytest.mark.parametrize("operation", ["put", "create"])
def test_a_failing_sink_is_tried_again_with_growing_waits(tmp_path, tire, operation):
    waits = tire(operation, 3)
    receipt, table = outcome(run_config(tmp_path, GOOD, failure={"max_shard_retries": 3}))
    assert waits == [0.25, 0.5, 1.0]
    assert (receipt.rows, table.num_rows) == (3, 3)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_sink_that_keeps_failing_fails_the_shard_by_name(tmp_path, tire, retries):
    waits = tire("put", retries + 1)
    config = run_config(tmp_path, GOOD, failure={"max_shard_retries": retries})
    *_, written = stages(config)
    assert written.failure.startswith(f"write: put {config.sink.uri}/parts/")
    assert "the store is tired" in written.failure
    assert written.table == b""
    assert waits == [0.25, 0.5][:retries]
    assert not list(tmp_path.glob("index/**/*.*"))


@pytest.mark.parametrize("operation", ["head", "get_range"])
def test_a_failing_source_is_tried_again_with_growing_waits(tmp_path, tire, monkeypatch, operation):
    monkeypatch.setattr("pipeline.store.Bucket", lambda *_: LocalFolder(tmp_path))
    source = {"uri": ("s3://bucket/rows.jsonl",)}
    config = run_config(tmp_path, GOOD, source=source, failure={"max_shard_retries": 2})
    task, waits = only_task(config), tire(operation, 2)
    _, table = outcome(config, task)
    assert waits == [0.25, 0.5]
    assert table["id"].to_pylist() == [0, 1, 2]


# ---- chunks


def test_chunks_are_rows_with_their_place_in_the_text(tmp_path):
    text = " ".join(f"the cat is in house {i} ." for i in range(6))
    rows = [{"id": "long", "text": text}, {"id": "short", "text": "one word"}]
    config = run_config(tmp_path, rows, chunking={"max_tokens": 8, "overlap_tokens": 2})
    _, table = outcome(config)
    *spans, last = spans_of(table)
    assert table["id"].to_pylist() == ["long"] * len(spans) + ["short"]
    assert [number for number, _, _ in spans] == list(range(len(spans)))
    assert (spans[0][1], spans[-1][2], last) == (0, len(text), (0, 0, 8))
    assert all(start < end for (_, _, end), (_, start, _) in pairwise(spans))
    texts = [*(text[start:end] for _, start, end in spans), "one word"]
    with Embedder.open(config.model.path, driver="numpy") as embedder:
        want = embedder.embed(texts)
    assert table["content_hash"].to_pylist() == [hash_content(one) for one in texts]
    assert np.array_equal(vectors_of(table), want.vectors)
    assert table["n_tokens"].to_pylist() == want.tokens.tolist()
    assert max(want.tokens) == 8 + 2
    assert table["truncated"].to_pylist() == [False] * len(texts)


@pytest.mark.parametrize("text", ["hello  world the cat\n" * 9, "中文ﬁß🎉é" * 9])
def test_chunks_without_overlap_leave_out_only_white_space(tmp_path, text):
    _, table = outcome(run_config(tmp_path, [{"id": 1, "text": text}], chunking={"max_tokens": 5}))
    assert table.num_rows > 5
    kept = "".join(text[start:end] for _, start, end in spans_of(table))
    assert "".join(kept.split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("policy", "tokens", "cut"),
    [
        ("truncate", [10, 3], True),
        ("chunk", [10, 10, 10, 8, 3], False),
        ("dead_letter", [3], False),
    ],
)
def test_a_text_too_long_is_cut_makes_rows_or_is_set_aside(tmp_path, policy, tokens, cut):
    rows, keys = [LONG, {"id": 4, "text": "cat"}], {"max_seq_len": 10}
    _, table = outcome(run_config(tmp_path, rows, model=keys, failure={"too_long": policy}))
    assert table["n_tokens"].to_pylist() == tokens
    assert any(table["truncated"].to_pylist()) is cut
    assert table["id"].to_pylist() == [3] * (len(tokens) - 1) + [4]


def test_chunks_leave_room_for_the_prompt(tmp_path):
    keys = {"max_seq_len": 10, "prompt_text": "find the : "}
    _, table = outcome(run_config(tmp_path, [LONG], model=keys, failure={"too_long": "chunk"}))
    assert table["n_tokens"].to_pylist() == [10] * 6
    assert not any(table["truncated"].to_pylist())


def test_a_chunk_that_begins_inside_a_word_loses_no_token(tmp_path):
    """`ingxyz` takes more tokens at the start of a text than inside a word, which has `##ing`."""
    rows, keys = [{"id": 1, "text": "aabbingxyz"}], {"max_seq_len": 6}
    _, table = outcome(run_config(tmp_path, rows, model=keys, failure={"too_long": "chunk"}))
    assert not any(table["truncated"].to_pylist())


def test_chunks_are_measured_on_the_text_as_the_model_reads_it(tmp_path):
    """A cased vocabulary has one unknown token for XYZ, and three for the xyz it is lowered to."""
    build(tmp_path / "model", TinyBert(cased=True, do_lower_case=True))
    rows, keys = [{"id": 1, "text": "XYZ " * 5}], {"max_seq_len": 6}
    _, table = outcome(run_config(tmp_path, rows, model=keys, failure={"too_long": "chunk"}))
    assert not any(table["truncated"].to_pylist())


def test_bad_chunks_set_the_whole_row_aside_once(tmp_path):
    config = run_config(
        tmp_path,
        [*GOOD, {"id": 3, "text": "word " * 17}, {"id": 4, "text": "two"}],
        chunking={"max_tokens": 8},
        failure={"too_long": "dead_letter"},
    )
    stricter = Embedder.open(config.model.path, driver="numpy", max_seq_len=6)
    receipt, table = outcome(config, embedder=stricter)
    assert [(letter.row, letter.id) for letter in receipt.dead_letters] == [(3, 3)]
    assert table["id"].to_pylist() == [0, 1, 2, 4]
