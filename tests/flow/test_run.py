"""A run before, during and after its work; the stages are called here, in the place of Ray."""

from __future__ import annotations

import errno
import os

import pytest
from run_builder import (
    CORPUS,
    column_of,
    do_shards,
    file_of,
    files,
    run_whole,
    small_shards,
    stand_in_for_ray,
)
from source_corpus import write_jsonl

from pipeline.backends import LocalFolder
from pipeline.cli import main
from pipeline.errors import GuardError, RayvecError, UsageError
from pipeline.index import Index
from pipeline.run import BadRowGuard, execute, prepare
from pipeline.sink import DeadLetter


@pytest.fixture(autouse=True)
def embedded(monkeypatch):
    return stand_in_for_ray(monkeypatch)


def everything_in(folder):
    """Content and time of every file."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


# ---- prepare


def test_preparing_writes_nothing(tmp_path):
    config = small_shards(tmp_path)
    before = everything_in(tmp_path)
    prepare(config)
    assert everything_in(tmp_path) == before
    assert not os.path.exists(config.sink.uri)
    run_whole(config)
    before = everything_in(tmp_path)
    prepare(config)
    prepare(small_shards(tmp_path, None, model={"max_seq_len": 9}))
    assert everything_in(tmp_path) == before


def test_a_first_run_embeds_everything_and_commits_version_1(tmp_path, embedded):
    config = small_shards(tmp_path)
    prepared = prepare(config)
    assert [task.shard.rows for task in prepared.todo] == [5, 5, 5, 5, 3]
    assert prepared.tasks == prepared.todo
    assert (prepared.base, prepared.epoch, prepared.kept, prepared.done) == (None, 0, {}, {})
    assert (prepared.dropped_shards, prepared.unchanged) == (0, False)
    version = run_whole(config)
    assert embedded == [task.work_key for task in prepared.tasks]
    assert (version.version, version.rows, version.parts, version.dead_letters) == (1, 23, 5, 0)
    assert version.fingerprint == prepared.fingerprint
    assert column_of(config, "id") == list(range(23))
    assert Index.open(config.sink.uri).verify().ok


def test_the_version_says_how_to_embed_a_query(tmp_path):
    config = small_shards(tmp_path, model={"max_seq_len": 9, "prompt_text": "find ", "dim": 8})
    summary = run_whole(config).summary
    said = {"model": config.model.path, "dtype": "float32", "driver": "numpy", "dim": 8}
    said |= {"max_seq_len": 9, "prompt": None, "prompt_text": "find ", "source_format": "jsonl"}
    assert {name: summary[name] for name in said} == said
    plain = small_shards(tmp_path, None, sink={"uri": f"{tmp_path}/plain"})
    assert run_whole(plain).summary["max_seq_len"] == 64


def test_an_unchanged_corpus_is_seen_to_be_unchanged(tmp_path):
    config = small_shards(tmp_path)
    run_whole(config)
    again = prepare(config)
    assert again.unchanged
    assert (len(again.kept), again.todo, again.done) == (5, (), {})


def test_kept_shards_are_not_embedded_again_and_vanished_ones_are_dropped(tmp_path, embedded):
    config = small_shards(tmp_path, None, source={"uri": (files(tmp_path, "abc"),)})
    assert run_whole(config).rows == 12
    (tmp_path / "corpus" / "a.jsonl").unlink()
    files(tmp_path, "d")
    embedded.clear()
    prepared = prepare(config)
    assert (len(prepared.kept), len(prepared.todo), prepared.dropped_shards) == (2, 1, 1)
    version = run_whole(config)
    assert (version.version, embedded) == (2, [prepared.todo[0].work_key])
    assert column_of(config, "id") == [f"{name}{i}" for name in "bcd" for i in range(4)]
    assert prepare(config).unchanged


def test_only_a_vanished_file_makes_a_run_that_commits_without_embedding(tmp_path, embedded):
    config = small_shards(tmp_path, None, source={"uri": (files(tmp_path, "ab"),)})
    run_whole(config)
    (tmp_path / "corpus" / "b.jsonl").unlink()
    embedded.clear()
    prepared = prepare(config)
    assert (prepared.unchanged, prepared.todo, prepared.dropped_shards) == (False, (), 1)
    version = run_whole(config)
    assert (version.version, version.rows, embedded) == (2, 4, [])


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"max_seq_len": 9}},
        {"model": {"dtype": "float16"}},
        {"model": {"pooling": "cls"}},
        {"model": {"prompt_text": "find "}},
        {"chunking": {"max_tokens": 8}},
        {"failure": {"too_long": "chunk"}},
        {"source": {"keep_columns": ("text",)}},
    ],
    ids=lambda sections: "-".join(f"{name}.{key}" for name in sections for key in sections[name]),
)
def test_what_changes_vectors_or_rows_keeps_nothing(tmp_path, sections):
    config = small_shards(tmp_path)
    run_whole(config)
    prepared = prepare(small_shards(tmp_path, None, **sections))
    assert prepared.fingerprint != prepare(config).fingerprint
    assert (prepared.kept, prepared.done, len(prepared.todo)) == ({}, {}, 5)


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"dtype": "float32"}},
        {"batching": {"max_batch_tokens": 64}},
        {"workers": {"count": 1, "cpus_per_worker": 0.5}},
        {"failure": {"bad_rows": "fail", "max_bad_fraction": 0.5, "max_shard_retries": 0}},
    ],
    ids=lambda sections: "-".join(f"{name}.{key}" for name in sections for key in sections[name]),
)
def test_what_changes_no_vector_keeps_everything(tmp_path, sections):
    run_whole(small_shards(tmp_path))
    assert prepare(small_shards(tmp_path, None, **sections)).unchanged


@pytest.mark.parametrize("tokens", [63, 1000])
def test_chunks_that_the_model_has_no_room_for_are_refused(tmp_path, tokens):
    config = small_shards(tmp_path, chunking={"max_tokens": tokens})
    with pytest.raises(UsageError, match=f"chunking.max_tokens: {tokens} .* 64 leaves 62 beside"):
        prepare(config)
    prepare(small_shards(tmp_path, chunking={"max_tokens": 62}))


def test_a_prompt_that_leaves_no_room_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"model\.prompt: leaves no room in 6 tokens"):
        prepare(small_shards(tmp_path, model={"max_seq_len": 6, "prompt_text": "the cat is in "}))


# ---- resume and full runs


def test_shards_with_a_receipt_are_done(tmp_path, embedded):
    config = small_shards(tmp_path)
    first = prepare(config)
    finished = do_shards(config, 2)
    resumed = prepare(config)
    assert set(resumed.done) == finished
    assert [t.work_key for t in resumed.todo] == [
        t.work_key for t in first.tasks if t.work_key not in finished
    ]
    embedded.clear()
    version = run_whole(config)
    assert embedded == [task.work_key for task in resumed.todo]
    assert (version.version, version.rows) == (1, 23)
    assert column_of(config, "id") == list(range(23))


def test_receipts_of_another_fingerprint_are_not_done(tmp_path):
    do_shards(small_shards(tmp_path), 5)
    assert len(prepare(small_shards(tmp_path, None)).done) == 5
    assert prepare(small_shards(tmp_path, None, model={"max_seq_len": 9})).done == {}


def test_a_resumed_run_has_the_vectors_of_an_undisturbed_one(tmp_path):
    config = small_shards(tmp_path)
    undisturbed = small_shards(tmp_path, None, sink={"uri": f"{tmp_path}/other"})
    do_shards(config, 2)
    run_whole(config)
    run_whole(undisturbed)
    assert column_of(config, "vector") == column_of(undisturbed, "vector")


def test_a_full_run_does_everything_again_in_a_new_epoch(tmp_path, embedded):
    config = small_shards(tmp_path)
    run_whole(config)
    full = small_shards(tmp_path, None, run={"mode": "full"})
    prepared = prepare(full)
    assert (prepared.epoch, len(prepared.todo), prepared.unchanged) == (1, 5, False)
    assert (prepared.kept, prepared.done, prepared.dropped_shards) == ({}, {}, 0)
    version = run_whole(full)
    assert (version.version, version.epoch, version.rows) == (2, 1, 23)
    assert prepare(config).unchanged
    assert prepare(config).epoch == 1
    assert prepare(full).epoch == 2


def test_a_full_run_that_broke_off_is_resumed(tmp_path):
    run_whole(small_shards(tmp_path))
    full = small_shards(tmp_path, None, run={"mode": "full"})
    do_shards(full, 1)
    assert (len(prepare(full).done), len(prepare(full).todo)) == (1, 4)


# ---- what stops a run


@pytest.mark.parametrize(
    ("fraction", "bad"), [(0.0, 0), (0.01, 1), (0.07, 7), (0.29, 29), (0.57, 57), (1.0, 100)]
)
def test_bad_rows_up_to_the_limit_pass_and_one_more_stops(tmp_path, fraction, bad):
    rows = [{"id": i, "text": None} for i in range(100)]
    config = small_shards(tmp_path, rows, failure={"max_bad_fraction": fraction})
    letters = [DeadLetter(row, row, f"rows.jsonl:{row}", "null text") for row in range(101)]
    guard = BadRowGuard(prepare(config))
    guard.add(letters[:bad])
    with pytest.raises(GuardError, match=f"max_bad_fraction: {bad + 1} of 100 .*:{bad}: null text"):
        guard.add(letters[bad : bad + 1])


def test_bad_rows_stop_a_run_by_name_and_what_is_done_is_kept(tmp_path, capsys):
    rows = [*CORPUS[:12], {"id": "bad"}, {"id": "worse"}, *CORPUS[12:]]
    config = small_shards(tmp_path, rows, failure={"max_bad_fraction": 0.05})
    assert main(["run", file_of(config)]) == GuardError.exit_code == 3
    assert "2 of 25 rows are bad, more than 5.00%; the latest: rows.jsonl:14" in (
        capsys.readouterr().err
    )
    assert prepare(config).base is None
    assert len(prepare(config).done) == 3
    with pytest.raises(GuardError):
        do_shards(config, 1)
    laxer = small_shards(tmp_path, None, failure={"max_bad_fraction": 0.08})
    assert len(prepare(laxer).todo) == 2
    version = run_whole(laxer)
    assert (version.rows, version.dead_letters) == (23, 2)


def test_one_bad_row_stops_a_run_that_wants_none(tmp_path):
    rows = [*CORPUS[:5], {"id": 99}]
    keys = {"bad_rows": "fail", "max_bad_fraction": 1.0}
    with pytest.raises(GuardError, match=r"rows.jsonl:6 \(id 99\): missing key 'text'"):
        run_whole(small_shards(tmp_path, rows, failure=keys))


def test_bad_rows_of_kept_shards_count(tmp_path):
    source = {"uri": (files(tmp_path, "ab"),)}
    write_jsonl(tmp_path / "corpus" / "c.jsonl", [{"id": "c", "text": "cat"}, {"id": "bad"}])
    run_whole(small_shards(tmp_path, None, source=source, failure={"max_bad_fraction": 0.1}))
    write_jsonl(tmp_path / "corpus" / "d.jsonl", [{"id": "d", "text": "cat"}, {"id": "bad2"}])
    config = small_shards(tmp_path, None, source=source, failure={"max_bad_fraction": 0.1})
    with pytest.raises(GuardError, match="2 of 12 rows are bad"):
        run_whole(config)


def test_a_shard_that_fails_fails_the_run_and_the_others_are_kept(tmp_path):
    config = small_shards(tmp_path, None, source={"uri": (files(tmp_path, "abc"),)})
    prepared = prepare(config)
    files(tmp_path, "b")
    steps = execute(prepared)
    with pytest.raises(
        RayvecError, match=r"1 of 3 shards failed.*b\.jsonl: changed since"
    ) as caught:
        list(steps)
    assert caught.value.exit_code == 1
    again = prepare(config)
    assert (again.base, len(again.done), len(again.todo)) == (None, 2, 1)
    assert run_whole(config).rows == 12


def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def refuse(self, key, data):
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(LocalFolder, "create", refuse)
    config = small_shards(tmp_path)
    with pytest.raises(UsageError, match="sink.uri: cannot be written: create .*no permission"):
        run_whole(config)
    assert not os.path.exists(config.sink.uri)


def test_a_place_below_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    config = small_shards(tmp_path, sink={"uri": f"{tmp_path}/file/index"})
    path = file_of(small_shards(tmp_path))
    assert main(["run", path, "--set", f"sink.uri={config.sink.uri}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_text() == ""


def test_a_place_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty and not an index: it holds notes.txt"):
        run_whole(small_shards(tmp_path))
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["notes.txt"]


def test_an_index_of_other_vectors_is_left_alone(tmp_path):
    run_whole(small_shards(tmp_path))
    before = everything_in(tmp_path / "index")
    with pytest.raises(RayvecError, match="holds another index: its dim is 32, this run's is 8"):
        run_whole(small_shards(tmp_path, None, model={"dim": 8}))
    assert everything_in(tmp_path / "index") == before


def test_the_null_driver_plans_but_makes_no_index_of_zeros(tmp_path, capsys):
    config = small_shards(tmp_path, workers={"driver": "null"})
    assert main(["plan", file_of(config)]) == 0
    assert main(["run", file_of(config)]) == 2
    assert "workers.driver: 'null'" in capsys.readouterr().err
    assert not os.path.exists(config.sink.uri)
