"""What planning keeps: unchanged files are not read again, and what is damaged is made again."""

from __future__ import annotations

import os
import re

import pytest
from run_builder import (
    CORPUS,
    column_of,
    do_shards,
    files,
    run_whole,
    small_shards,
    stand_in_for_ray,
)
from source_corpus import write_jsonl

from pipeline.errors import RayvecError, UsageError
from pipeline.index import Index
from pipeline.run import prepare

TWICE = [*CORPUS[:7], {"id": 1, "text": "another"}, {"id": 6, "text": "another"}, *CORPUS[7:]]


@pytest.fixture(autouse=True)
def embedded(monkeypatch):
    return stand_in_for_ray(monkeypatch)


def spoil(path, *, unseen):
    """Overwrite a file in place with as many bytes that are no rows.

    unseen: with its time put back, so that nothing but reading it can tell.
    """
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"?" * before.st_size)
    if unseen:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def only_file(folder):
    (path,) = folder.iterdir()
    return path


def planned(config):
    return [(task.work_key, task.shard) for task in prepare(config).tasks]


# ---- files are not read again


def test_unchanged_files_are_not_read_again(tmp_path):
    config = small_shards(tmp_path)
    run_whole(config)
    before = planned(config)
    spoil(tmp_path / "rows.jsonl", unseen=True)
    assert planned(config) == before
    assert prepare(config).unchanged
    spoil(tmp_path / "rows.jsonl", unseen=False)
    with pytest.raises(RayvecError):
        run_whole(config)


def test_files_are_not_read_again_after_a_run_that_broke_off(tmp_path):
    config = small_shards(tmp_path)
    do_shards(config, 1)
    before = planned(config)
    spoil(tmp_path / "rows.jsonl", unseen=True)
    assert planned(config) == before


def test_beside_a_new_file_the_ids_of_the_others_are_known(tmp_path):
    source = {"uri": (files(tmp_path, "ab"),)}
    config = small_shards(tmp_path, None, source=source)
    run_whole(config)
    spoil(tmp_path / "corpus" / "a.jsonl", unseen=True)
    files(tmp_path, "c")
    assert [task.shard.pieces[0].name for task in prepare(config).todo] == ["c.jsonl"]


def test_a_new_duplicate_of_an_old_row_is_found(tmp_path):
    source = {"uri": (files(tmp_path, "ab"),)}
    config = small_shards(tmp_path, None, source=source)
    run_whole(config)
    write_jsonl(tmp_path / "corpus" / "c.jsonl", [{"id": "a2", "text": "another"}])
    with pytest.raises(UsageError, match=r"'a2' in a\.jsonl:1 .* and in c\.jsonl:1 "):
        prepare(config)


def test_scans_of_other_settings_are_not_used(tmp_path):
    run_whole(small_shards(tmp_path))
    other = small_shards(tmp_path, None, source={"rows_per_shard": 10})
    assert [shard.rows for _, shard in planned(other)] == [10, 10, 3]


# ---- what is damaged is made again


def shorter(data):
    return data[: len(data) // 2]


def other_columns(data):
    return re.sub(rb'("columns": *".{40}).{8}', rb"\1", data, count=1)


def fewer_rows(data):
    return re.sub(rb'"rows": *5', b'"rows": 4', data, count=1)


def one_hash_less(data):
    return data[:-8]


def one_hash_more(data):
    return data + data[:8]


def other_hashes(data):
    return bytes(byte ^ 1 for byte in data)


@pytest.mark.parametrize(
    "damage",
    [
        shorter,
        other_columns,
        fewer_rows,
        lambda data: b"",
        lambda data: b"\xff\xfe",
        lambda data: b"null",
        lambda data: b"[1]",
        lambda data: b'[{"name": "rows.jsonl"}]',
    ],
    ids=["shorter", "columns", "rows", "empty", "bytes", "null", "number", "fields"],
)
def test_damaged_scans_are_logged_and_made_again(tmp_path, caplog, damage):
    config = small_shards(tmp_path)
    do_shards(config, 5)
    path = only_file(tmp_path / "index" / "scans")
    whole = path.read_bytes()
    before = planned(config)
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    assert planned(config) == before
    assert f"{path}: damaged" in caplog.text
    run_whole(config)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "damage",
    [shorter, one_hash_less, one_hash_more, other_hashes, lambda data: b"\0" * 8],
    ids=["shorter", "one less", "one more", "others", "zeros"],
)
def test_damaged_id_hashes_are_logged_and_made_again(tmp_path, caplog, damage):
    """A row of the shard comes again in a new file; two rows of the shard are bad."""
    source = {"uri": (f"{tmp_path}/*.jsonl",)}
    rows = [*CORPUS[:3], {"id": 77}, {"id": 78}]
    config = small_shards(tmp_path, rows, source=source, failure={"max_bad_fraction": 1.0})
    run_whole(config)
    path = only_file(tmp_path / "index" / "ids")
    path.write_bytes(damage(path.read_bytes()))
    write_jsonl(tmp_path / "sea.jsonl", [{"id": 2, "text": "another"}])
    with pytest.raises(UsageError, match=r": 2 in rows\.jsonl:1 .* and in sea\.jsonl:1 "):
        prepare(config)
    assert f"{path}: damaged" in caplog.text


def test_caches_that_are_gone_are_made_again(tmp_path, caplog):
    config = small_shards(tmp_path)
    run_whole(config)
    for path in [*(tmp_path / "index").glob("scans/*"), *(tmp_path / "index").glob("ids/*")]:
        path.unlink()
    assert prepare(config).unchanged
    assert caplog.text == ""


# ---- duplicate ids


def test_duplicate_ids_are_refused_with_both_places_and_nothing_is_written(tmp_path):
    config = small_shards(tmp_path, TWICE)
    with pytest.raises(UsageError, match=r"2 row\(s\) .*1 in rows.jsonl:1 .* and in rows.jsonl:6"):
        prepare(config)
    assert not os.path.exists(config.sink.uri)


@pytest.mark.parametrize(("policy", "letters"), [("keep_first", 0), ("dead_letter", 2)])
def test_the_first_of_duplicate_ids_stays(tmp_path, policy, letters):
    config = small_shards(
        tmp_path,
        TWICE,
        source={"duplicates": policy},
        failure={"max_bad_fraction": 0.5},
    )
    version = run_whole(config)
    assert (version.rows, version.dead_letters) == (23, letters)
    assert column_of(config, "id") == list(range(23))
    assert Index.open(config.sink.uri).verify().duplicate_ids == 0
    assert prepare(config).unchanged


def test_a_dropped_row_comes_back_when_its_first_goes(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_jsonl(corpus / "a.jsonl", CORPUS[:4])
    write_jsonl(corpus / "b.jsonl", CORPUS[3:7])
    source = {"uri": (str(corpus),), "duplicates": "keep_first"}
    config = small_shards(tmp_path, None, source=source)
    assert run_whole(config).rows == 7
    (corpus / "a.jsonl").unlink()
    assert run_whole(config).rows == 4
    assert column_of(config, "id") == [3, 4, 5, 6]
