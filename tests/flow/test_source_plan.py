"""Planning: the same shards always, small moves when a file comes, and what is listed."""

from __future__ import annotations

import json
import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_corpus import config, read_all, write_jsonl

from pipeline.errors import UsageError
from pipeline.source import (
    FileScan,
    Shard,
    SourceChangedError,
    plan_shards,
    read_shard,
)
from pipeline.source.files import Files
from pipeline.source.listing import glob_pattern
from pipeline.source.plan import ends_shard
from pipeline.store import Store


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": start + i, "text": f"text {start + i}"} for i in range(count)]


def test_a_plan_is_the_same_every_time(tmp_path: Path) -> None:
    for i in range(40):
        write_jsonl(tmp_path / f"{i:02}.jsonl", rows(i * 3, start=1000 * i))
    source = config("jsonl", tmp_path, rows_per_shard=50)
    first, second = plan_shards(source), plan_shards(source)
    assert first == second
    assert len({shard.key for shard in first.shards}) == len(first.shards)
    assert all(shard.rows <= 50 for shard in first.shards)
    got = read_all(source)
    assert got.ids == [row["id"] for i in range(40) for row in rows(i * 3, 1000 * i)]


def test_shards_are_small_plain_values(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", rows(10))
    for shard in plan_shards(config("jsonl", tmp_path, rows_per_shard=3)).shards:
        assert Shard.from_json(json.loads(json.dumps(shard.to_json()))) == shard
        assert pickle.loads(pickle.dumps(shard)) == shard
        assert len(json.dumps(shard.to_json())) < 1500


def test_a_key_depends_on_content_range_and_columns_but_not_on_the_place(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    path = write_jsonl(here / "a.jsonl", rows(4))
    source = config("jsonl", here)
    (shard,) = plan_shards(source).shards
    os.rename(here, tmp_path / "there")
    (moved,) = plan_shards(config("jsonl", tmp_path / "there")).shards
    assert moved.key == shard.key
    os.rename(tmp_path / "there", here)
    (other,) = plan_shards(config("jsonl", here, text_column="id", id_column="text")).shards
    assert other.key != shard.key
    write_jsonl(path, rows(5)[1:])
    (changed,) = plan_shards(source).shards
    assert changed.key != shard.key


@pytest.mark.parametrize("place", [0, 150, 299])
def test_a_new_small_file_moves_only_its_neighbours(tmp_path: Path, place: int) -> None:
    for i in range(300):
        (tmp_path / f"{i:03}.txt").write_text(f"text {i}", encoding="utf-8")
    source = config("text", tmp_path, rows_per_shard=30)
    before = plan_shards(source)
    assert 10 <= len(before.shards) < 60
    (tmp_path / f"{place:03}x.txt").write_text("new", encoding="utf-8")
    after = plan_shards(source)
    kept = {shard.key for shard in before.shards} & {shard.key for shard in after.shards}
    names = [f"{i:03}.txt" for i in range(300)]
    ends = [i for i, name in enumerate(names) if ends_shard(name, weight=1 / 30)]
    low = max((i for i in ends if i <= place), default=-1)
    high = min((i for i in ends if i > place), default=299)
    moved = [s for s in before.shards if s.key not in kept]
    touched = {piece.name for shard in moved for piece in shard.pieces}
    assert touched <= set(names[low + 1 : high + 1])
    assert len(moved) <= 5


def test_a_large_file_depends_on_itself_alone(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "m.jsonl", rows(100))
    source = config("jsonl", tmp_path, rows_per_shard=30)
    before = plan_shards(source).shards
    write_jsonl(tmp_path / "a.jsonl", rows(100, 500))
    write_jsonl(tmp_path / "z.jsonl", rows(2, 900))
    after = plan_shards(source).shards
    assert [shard.rows for shard in before] == [30, 30, 30, 10]
    assert set(before) < set(after)
    assert [shard.pieces[0].name for shard in after] == [
        *["a.jsonl"] * 4,
        *["m.jsonl"] * 4,
        "z.jsonl",
    ]


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "text", "python"])
def test_limit_keeps_the_first_rows(tmp_path: Path, format: str) -> None:
    for i in range(6):
        table = pa.table(
            {"id": [f"{i}{j}" for j in range(10)], "text": [f"t{j}" for j in range(10)]}
        )
        write_jsonl(tmp_path / f"{i}.jsonl", table.to_pylist())
        pq.write_table(table, tmp_path / f"{i}.parquet", row_group_size=4)
        lines = "".join(f"{r['id']},{r['text']}\n" for r in table.to_pylist())
        (tmp_path / f"{i}.csv").write_text(f"id,text\n{lines}", encoding="utf-8")
        (tmp_path / f"{i}.txt").write_text(f"t{i}", encoding="utf-8")
        code = "".join(f"def f{j}(): pass\n" for j in range(10))
        (tmp_path / f"{i}.py").write_text(code, encoding="utf-8")
    everything = read_all(config(format, tmp_path, rows_per_shard=7))
    for limit in (1, 3, 6, 7, 10, 23, 1000):
        got = read_all(config(format, tmp_path, rows_per_shard=7, limit=limit))
        assert got.ids == everything.ids[:limit]
    for limit in (3, 23):
        known = plan_shards(config(format, tmp_path, rows_per_shard=7)).scans
        source = config(format, tmp_path, rows_per_shard=7, limit=limit)
        assert plan_shards(source, known=known).shards == plan_shards(source).shards


def test_known_scans_save_reading_unchanged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        write_jsonl(tmp_path / f"{i}.jsonl", rows(10, 10 * i))
    source = config("jsonl", tmp_path, rows_per_shard=20)
    plan = plan_shards(source)
    known = [FileScan.from_json(json.loads(json.dumps(scan.to_json()))) for scan in plan.scans]
    write_jsonl(tmp_path / "3.jsonl", rows(11, 30))
    opened: list[str] = []
    stream = Files.stream

    def counting(self: Files, file: Any, *args: Any, **keys: Any) -> Any:
        opened.append(file.name)
        return stream(self, file, *args, **keys)

    monkeypatch.setattr(Files, "stream", counting)
    again = plan_shards(source, known=known)
    assert opened == ["3.jsonl"]
    assert again == plan_shards(source)
    opened.clear()
    plan_shards(config("jsonl", tmp_path, rows_per_shard=21), known=known)
    assert len(opened) == 5


@pytest.mark.parametrize("change", ["content", "touched", "gone", "shorter"])
def test_a_source_that_changes_fails_its_shard_by_name(tmp_path: Path, change: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", rows(5))
    source = config("jsonl", tmp_path, rows_per_shard=2)
    shard = plan_shards(source).shards[-1]
    if change == "content":
        write_jsonl(path, rows(5, 3))
    elif change == "touched":
        os.utime(path, ns=(1, 1))
    elif change == "gone":
        path.unlink()
    else:
        path.write_bytes(b"")
    with pytest.raises(SourceChangedError, match=r"a\.jsonl"):
        read_shard(shard, source)


def test_a_piece_with_another_number_of_rows_fails_its_shard(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", rows(5))
    source = config("jsonl", tmp_path)
    (shard,) = plan_shards(source).shards
    values = shard.to_json()
    values["pieces"][0]["rows"] = 6
    with pytest.raises(SourceChangedError, match=r"a\.jsonl: 5 rows where the plan counted 6"):
        read_shard(Shard.from_json(values), source)


def test_parquet_shards_cut_through_row_groups(tmp_path: Path) -> None:
    table = pa.table({"id": range(1003), "text": [f"text {i}" for i in range(1003)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=64)
    for rows_per_shard in (1, 50, 64, 100, 1003, 20_000):
        source = config("parquet", tmp_path, rows_per_shard=rows_per_shard)
        if rows_per_shard > 1:
            assert read_all(source).table.drop_columns("source_row").equals(table)
        plan = plan_shards(source)
        full, rest = divmod(1003, rows_per_shard)
        assert [s.rows for s in plan.shards] == [rows_per_shard] * full + [rest] * (rest > 0)


def test_what_folders_globs_files_and_lists_name(tmp_path: Path) -> None:
    for name in ("a.txt", "sub/b.md", "sub/deep/c.TXT", "sub/d.rst", ".git/e.txt", "sub/.f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert read_all(config("text", tmp_path)).ids == ["a.txt", "sub/b.md", "sub/deep/c.TXT"]
    assert read_all(config("text", f"{tmp_path}/")).texts[0] == "a.txt"
    assert read_all(config("text", tmp_path / "sub" / "d.rst")).ids == ["d.rst"]
    assert read_all(config("text", tmp_path / "sub" / "*.*")).ids == [".f.txt", "b.md", "d.rst"]
    assert read_all(config("text", f"{tmp_path}/sub/**/*.TXT")).ids == ["deep/c.TXT"]
    assert read_all(config("text", f"file://{tmp_path}/[ab].txt")).ids == ["a.txt"]
    both = read_all(config("text", tmp_path / "a.txt", tmp_path / "sub"))
    assert both.ids == [f"{tmp_path}/{name}" for name in ("a.txt", "sub/b.md", "sub/deep/c.TXT")]
    twice = read_all(config("text", tmp_path, tmp_path / "a.txt"))
    assert len(twice.ids) == 3
    with pytest.raises(UsageError, match="no files matched .*absent"):
        plan_shards(config("text", tmp_path, tmp_path / "absent"))


def test_glob_patterns_match_whole_paths() -> None:
    cases = {
        "*.txt": (["a.txt"], ["b/a.txt", "a.txtx"]),
        "**/*.txt": (["a.txt", "b/c/a.txt"], ["a.md"]),
        "b/**": (["b/a", "b/c/d"], ["c/b/a"]),
        "?[!ab].c": (["xz.c"], ["xa.c", "x/.c"]),
        "[a-c].c": (["b.c"], ["d.c", "-.c"]),
        "a+b(1).c": (["a+b(1).c"], ["aab1.c"]),
    }
    for glob, (matched, unmatched) in cases.items():
        pattern = glob_pattern(glob)
        assert all(pattern.fullmatch(name) for name in matched), glob
        assert not any(pattern.fullmatch(name) for name in unmatched), glob


def test_columns_that_cannot_be_kept(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"_id": 1, "body": "a", "id": 2, "text": "b"}])
    keep = {"id_column": "_id", "text_column": "body"}
    with pytest.raises(UsageError, match="'text' is a name of the output's own columns"):
        plan_shards(config("jsonl", tmp_path, keep_columns=("text",), **keep))
    got = read_all(config("jsonl", tmp_path, keep_columns=("body",), **keep))
    assert got.table.column_names == ["id", "text", "body", "source_row"]
    got = read_all(config("jsonl", tmp_path, keep_columns=("text",)))
    assert got.table.column_names == ["id", "text", "source_row"]
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="no column 'lang'; its columns: none"):
        plan_shards(config("text", tmp_path, keep_columns=("lang",)))


def test_unreadable_and_odd_rows_of_jsonl(tmp_path: Path) -> None:
    lines = [
        '{"id": 1, "text": "lone \\ud800 half"}',
        '{"id": "\\udc00", "text": "a"}',
        "[" * 100_000,
        '{"id": ' + "[" * 900 + "]" * 900 + ', "text": "a"}',
        '{"id": 1.5, "text": "a"}',
        '{"id": true, "text": "a"}',
        '{"text": "a"}',
        '{"id": null, "text": "a"}',
        '{"id": 99999999999999999999, "text": "whole \\ud83d\\ude00"}',
        " \t\r",
        '{"id": "x", "text": "last", "text": "wins"}\r',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8", newline="")
    got = read_all(config("jsonl", tmp_path))
    assert (got.ids, got.texts) == (["99999999999999999999", "x"], ["whole 😀", "wins"])
    assert [report.reason for report in got.dead_letters] == [
        "a value holds a lone surrogate, which is not text",
        "id holds a lone surrogate, which is not text",
        "nested too deeply",
        "id is " + "[" * 37 + "..., not a string or an integer",
        "id is 1.5, not a string or an integer",
        "id is true, not a string or an integer",
        "missing key 'id'",
        "null id",
    ]


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "text"])
def test_an_s3_source_reads_as_a_local_one(tmp_path: Path, s3_endpoint: str, format: str) -> None:
    table = pa.table(
        {"id": [f"r{i}" for i in range(300)], "text": [f"text {i}" for i in range(300)]}
    )
    write_jsonl(tmp_path / "a.jsonl", table.to_pylist())
    write_jsonl(tmp_path / "deep.jsonl", [{"id": "z", "text": "last"}])
    lines = "".join(f"{r['id']},{r['text']}\r\n" for r in table.to_pylist())
    (tmp_path / "a.csv").write_text(f"id,text\r\n{lines}", encoding="utf-8", newline="")
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text(f"text {i}", encoding="utf-8")
    root = f"s3://vec/{uuid.uuid4().hex}"
    store = Store.open(root, endpoint=s3_endpoint)
    for path in tmp_path.iterdir():
        store.put(path.name, path.read_bytes())
    local = read_all(config(format, tmp_path, rows_per_shard=70))
    for place in (root, f"{root}/*.{'txt' if format == 'text' else format}"):
        remote = read_all(config(format, place, rows_per_shard=70), endpoint=s3_endpoint)
        assert remote.table.equals(local.table)
    source = config(format, root, rows_per_shard=70)
    shard = plan_shards(source, endpoint=s3_endpoint).shards[0]
    store.put(shard.pieces[0].name, b"other")
    with pytest.raises(SourceChangedError, match=r"s3://vec/"):
        read_shard(shard, source, endpoint=s3_endpoint)
