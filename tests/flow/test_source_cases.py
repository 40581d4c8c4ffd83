"""The cases on reading a corpus, each named in its test; expectations come from csv and json."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_corpus import config, read_all, write_jsonl

from pipeline.errors import UsageError
from pipeline.source import SourceReadError, plan_shards, read_shard


def csv_rows(data: bytes) -> list[list[str]]:
    """Records below the header, by Python's reader."""
    text = data.decode("utf-8-sig")
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row][1:]


def test_pipe_03_a_row_of_3_mib_is_one_row(tmp_path: Path) -> None:
    texts = [f"small {i}" for i in range(10)]
    texts = [*texts, "long " * (3 << 20 >> 2), *texts]
    rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert read_all(config("jsonl", path)).texts == texts
    data = io.StringIO(newline="")
    csv.writer(data).writerows([["id", "text"], *enumerate(texts)])
    (tmp_path / "a.csv").write_text(data.getvalue(), encoding="utf-8", newline="")
    assert read_all(config("csv", tmp_path / "a.csv")).texts == texts
    table = pa.table({"id": range(21), "text": pa.array(texts, pa.large_string())})
    pq.write_table(table, tmp_path / "a.parquet")
    got = read_all(config("parquet", tmp_path / "a.parquet"))
    assert got.texts == texts
    assert got.table.schema.field("text").type == pa.string()


def test_pipe_03_a_shard_ends_at_16_mib_of_text(tmp_path: Path) -> None:
    rows = [{"id": i, "text": "x" * (3 << 20)} for i in range(11)]
    plan = plan_shards(config("jsonl", write_jsonl(tmp_path / "a.jsonl", rows)))
    assert [shard.rows for shard in plan.shards] == [5, 5, 1]
    table = pa.table({"id": range(11), "text": [chr(97 + i) * (3 << 20) for i in range(11)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    plan = plan_shards(config("parquet", tmp_path / "a.parquet"))
    assert [shard.rows for shard in plan.shards] == [5, 5, 1]


def write_pipe_04(folder: Path) -> list[pa.Table]:
    a = pa.table({"id": [1, 2], "text": ["a", "b"], "tag": pa.nulls(2)})
    b = pa.table({"text": pa.array(["c"], pa.large_string()), "id": [3], "tag": ["news"]})
    c = pa.table(
        {
            "id": pa.array([4, 5], pa.int32()),
            "text": pa.array(["d", "d"]).dictionary_encode(),
            "extra": [0.5, 0.5],
            "tag": pa.array(["x", None]).dictionary_encode(),
        }
    )
    for name, table in zip("abc", (a, b, c), strict=True):
        pq.write_table(table, folder / f"{name}.parquet")
    return [a, b, c]


def test_pipe_04_files_of_differing_schemas_are_joined_by_name(tmp_path: Path) -> None:
    tables = write_pipe_04(tmp_path)
    for rows_per_shard in (1, 20_000):
        source = config("parquet", tmp_path, keep_columns=("tag",), rows_per_shard=rows_per_shard)
        got = read_all(source).table.drop_columns(["source_row"])
        plain = [
            table.set_column(i, "tag", table["tag"].cast(pa.string()))
            for table in tables
            for i in [table.schema.get_field_index("tag")]
        ]
        plain[2] = plain[2].set_column(1, "text", plain[2]["text"].cast(pa.string()))
        want = pa.concat_tables(plain, promote_options="permissive").select(["id", "text", "tag"])
        assert got.to_pylist() == want.to_pylist()
        assert got.schema.types == [pa.int64(), pa.string(), pa.string()]


def test_pipe_04_a_file_without_the_column_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_pipe_04(tmp_path)
    pq.write_table(pa.table({"id": [6], "texts": ["e"], "tag": ["y"]}), tmp_path / "d.parquet")
    with pytest.raises(UsageError, match=r"d\.parquet: no column 'text'; did you mean 'texts'\?"):
        plan_shards(config("parquet", tmp_path))
    (tmp_path / "d.csv").write_text("id,txt\n1,a\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"d\.csv: no column 'text'; did you mean 'txt'\?"):
        plan_shards(config("csv", tmp_path))
    write_jsonl(tmp_path / "d.jsonl", [{"_id": 1, "text": "a"}])
    with pytest.raises(UsageError, match=r"d\.jsonl: no column 'id'; did you mean '_id'\?"):
        plan_shards(config("jsonl", tmp_path))


def test_pipe_04_types_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    base = {"id": [1], "text": ["a"]}
    pq.write_table(pa.table({**base, "k": [[1, 2]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({**base, "k": [3]}), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match=r"b\.parquet: column 'k' is int64, but list<.*a\.parquet"):
        plan_shards(config("parquet", tmp_path, keep_columns=("k",)))
    pq.write_table(pa.table({"id": [1], "text": [1.5]}), tmp_path / "c.parquet")
    with pytest.raises(UsageError, match=r"c\.parquet: column 'text' is double; wanted strings"):
        plan_shards(config("parquet", tmp_path / "c.parquet"))


def test_pipe_04_types_that_differ_are_widened(tmp_path: Path) -> None:
    a = {"id": pa.array([1], pa.uint8()), "n": pa.array([2**40], pa.int64()), "w": [True]}
    b = {"id": ["b"], "n": [0.5], "w": pa.array([7], pa.int8())}
    for name, columns in (("a", a), ("b", b)):
        pq.write_table(pa.table({**columns, "text": ["t"]}), tmp_path / f"{name}.parquet")
    got = read_all(config("parquet", tmp_path, keep_columns=("n", "w"), rows_per_shard=1)).table
    assert got["id"].to_pylist() == ["1", "b"]
    assert got["n"].to_pylist() == [2.0**40, 0.5]
    assert got["w"].to_pylist() == ["true", "7"]


def test_pipe_04_jsonl_kept_columns_have_one_type_in_every_shard(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"id": 1, "text": "a", "n": None, "tag": None, "x": 1}])
    write_jsonl(
        tmp_path / "b.jsonl",
        [
            {"id": "b", "text": "b", "n": 2, "tag": "t", "x": True, "deep": {"k": [1]}},
            {"id": 3, "text": "c", "n": 2.5, "x": float("nan")},
        ],
    )
    source = config("jsonl", tmp_path, keep_columns=("n", "tag", "x", "deep"), rows_per_shard=1)
    got = read_all(source).table
    assert got.schema.types[:2] == [pa.string(), pa.string()]
    assert got["id"].to_pylist() == ["1", "b", "3"]
    assert got["n"].to_pylist() == [None, 2.0, 2.5]
    assert got["tag"].to_pylist() == [None, "t", None]
    assert got["x"].to_pylist() == ["1", "true", None]
    assert got["deep"].to_pylist() == [None, '{"k": [1]}', None]
    with pytest.raises(UsageError, match=r"a\.jsonl: no column 'tags'; did you mean 'tag'\?"):
        plan_shards(config("jsonl", tmp_path, keep_columns=("tags",)))


def write_empty_files(folder: Path) -> None:
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "blank.jsonl").write_bytes(b"\n\n")
    (folder / "empty.csv").write_bytes(b"")
    (folder / "head.csv").write_bytes(b"id,text\n")
    (folder / "empty.parquet").write_bytes(b"")
    table = pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})
    pq.write_table(table, folder / "zero.parquet")


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_pipe_05_empty_files_give_no_rows(tmp_path: Path, format: str) -> None:
    write_empty_files(tmp_path)
    with pytest.raises(UsageError, match=f"no rows in the 2 {format} file"):
        plan_shards(config(format, tmp_path))
    rows = [{"id": i, "text": f"text {i}"} for i in range(3)]
    write_jsonl(tmp_path / "good.jsonl", rows)
    (tmp_path / "good.csv").write_text("id,text\n0,text 0\n1,text 1\n2,text 2\n", encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "good.parquet")
    got = read_all(config(format, tmp_path))
    assert got.texts == ["text 0", "text 1", "text 2"]
    assert got.dead_letters == []


def test_pipe_05_nothing_matched_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    for place in (tmp_path, tmp_path / "absent", tmp_path / "*.jsonl"):
        with pytest.raises(UsageError, match="no files matched .*") as caught:
            plan_shards(config("jsonl", place))
        assert str(place) in str(caught.value)


def test_pipe_07_csv_is_never_type_inferred(tmp_path: Path) -> None:
    one, two = b'id,text\n007,123\n"010",456\n', b"id,text\n1,NA\n2,null\n3,true\n4,2024-01-05\n"
    (tmp_path / "1.csv").write_bytes(one)
    (tmp_path / "2.csv").write_bytes(two)
    got = read_all(config("csv", tmp_path))
    assert [list(pair) for pair in zip(got.ids, got.texts, strict=True)] == [
        *csv_rows(one),
        *csv_rows(two),
    ]
    assert got.ids[:2] == ["007", "010"]


def test_pipe_07_an_empty_csv_field_is_null(tmp_path: Path) -> None:
    data = b'id,text,tag\n1,a,\n2,"",x\n3,,y\n,d,z\n5,  ,NaN\n'
    (tmp_path / "a.csv").write_bytes(data)
    got = read_all(config("csv", tmp_path, keep_columns=("tag",)))
    assert got.table.select(["id", "text", "tag"]).to_pylist() == [
        {"id": "1", "text": "a", "tag": None},
        {"id": "5", "text": "  ", "tag": "NaN"},
    ]
    assert [(r.id, r.reason) for r in got.dead_letters] == [
        ("2", "null text"),
        ("3", "null text"),
        (None, "null id"),
    ]


def pipe_09_bytes() -> bytes:
    """2 MiB; the CRLF inside one quoted field lies at byte 1048576; one lone quote."""
    row = '{},"line one\nline two, with ""quotes"""\r\n'
    out = bytearray(b"id,text\r\n")
    i = 0
    while len(out) < (1 << 20) - 200:
        out += row.format(i).encode()
        i += 1
    prefix = f'{i},"'.encode()
    out += prefix + b"p" * ((1 << 20) - len(out) - len(prefix)) + b'\r\nafter the border"\r\n'
    assert out[1 << 20 : (1 << 20) + 2] == b"\r\n"
    out += f'{i + 1},5" pipe\r\n{i + 2},one,too many\r\n'.encode()
    i += 3
    while len(out) < 2 << 20:
        out += row.format(i).encode()
        i += 1
    return bytes(out)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst"])
def test_pipe_09_quoted_newlines_are_as_python_reads_them(tmp_path: Path, suffix: str) -> None:
    data = pipe_09_bytes()
    codec = {".csv": None, ".csv.gz": "gzip", ".csv.zst": "zstd"}[suffix]
    stored = data if codec is None else pa.compress(data, codec=codec, asbytes=True)
    (tmp_path / f"a{suffix}").write_bytes(stored)
    want = csv_rows(data)
    bad = next(row for row in want if len(row) != 2)
    odd = next(row for row in want if row[1] == '5" pipe')
    line_of_bad = data[: data.index(b",one,too many")].count(b"\n") + 1
    for rows_per_shard in (999, 20_000):
        got = read_all(config("csv", tmp_path, rows_per_shard=rows_per_shard))
        assert len(got.texts) + 1 == len(want)
        want_hashes = [hashlib.sha256(row[1].encode()).digest() for row in want if row != bad]
        assert [hashlib.sha256(t.encode()).digest() for t in got.texts] == want_hashes
        assert got.ids == [row[0] for row in want if row != bad]
        assert got.places == [f"a{suffix}:{line_of_bad}"]
        assert got.dead_letters[0].reason == "3 fields where the header has 2"
        (remark,) = got.remarks
        assert (remark.id, remark.where) == (odd[0], f"a{suffix}:{line_of_bad - 1}")


def test_pipe_09_an_open_quote_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,a\n2,"b\n3,c\n')
    got = read_all(config("csv", tmp_path))
    assert got.texts == ["a"]
    assert [(r.where, r.reason) for r in got.dead_letters] == [
        ("a.csv:3", "a quoted field is never closed")
    ]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_pipe_11_a_bom_is_dropped_and_bad_bytes_lose_one_row(tmp_path: Path, format: str) -> None:
    if format == "csv":
        lines = [b"id,text", *(b"%d,caf\xc3\xa9 %d" % (i, i) for i in range(1, 11))]
    else:
        lines = [b'{"id": "%d", "text": "caf\xc3\xa9 %d"}' % (i, i) for i in range(1, 11)]
    fifth = len(lines) - 6
    lines[fifth] = lines[fifth].replace(b"\xc3\xa9", b"\xe9")
    lines[-1] = lines[-1].replace(b"caf", b"ca\x00f" if format == "csv" else rb"ca\u0000f")
    path = tmp_path / f"a.{format}"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    for rows_per_shard in (1, 3, 20_000):
        got = read_all(config(format, path, rows_per_shard=rows_per_shard))
        assert got.ids == [str(i) for i in range(1, 11) if i != 5]
        assert got.texts == [*(f"café {i}" for i in (1, 2, 3, 4, 6, 7, 8, 9)), "ca\0fé 10"]
        (report,) = got.dead_letters
        assert report.where == f"a.{format}:{fifth + 1}"
        assert report.reason.startswith("invalid UTF-8")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_pipe_11_utf_16_is_refused_by_name(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("id,text\n1,a\n".encode(encoding))
    (tmp_path / "a.jsonl").write_bytes('{"id": 1, "text": "a"}\n'.encode(encoding))
    for format in ("csv", "jsonl"):
        with pytest.raises(UsageError, match=rf"a\.{format}: .*UTF-16"):
            plan_shards(config(format, tmp_path))
    (tmp_path / "a.txt").write_bytes("some text".encode(encoding))
    got = read_all(config("text", tmp_path))
    assert (got.texts, got.dead_letters[0].id) == ([], "a.txt")
    assert "UTF-16" in got.dead_letters[0].reason


def test_pipe_11_parquet_strings_that_are_not_utf_8(tmp_path: Path) -> None:
    raw = [b"a", b"caf\xe9", b"caf\xc3\xa9", None]
    table = pa.table({"id": [1, 2, 3, 4], "text": pa.array(raw, pa.binary())})
    pq.write_table(table, tmp_path / "binary.parquet")
    broken = pa.Array.from_buffers(pa.string(), 4, pa.array(raw, pa.binary()).buffers())
    pq.write_table(table.set_column(1, "text", broken), tmp_path / "string.parquet")
    for name in ("binary.parquet", "string.parquet"):
        got = read_all(config("parquet", tmp_path / name))
        assert (got.ids, got.texts) == ([1, 3], ["a", "café"])
        assert [(r.id, r.where, r.reason) for r in got.dead_letters] == [
            (2, f"{name}:row 1", "invalid UTF-8 in 'text'"),
            (4, f"{name}:row 3", "null text"),
        ]


TEXTS = ["a", None, float("nan"), "", "   ", "nan", "None"]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_pipe_12_null_and_nan_are_not_words(tmp_path: Path, format: str) -> None:
    rows: list[dict[str, object]] = [{"id": i, "text": t} for i, t in enumerate(TEXTS)]
    if format == "jsonl":
        write_jsonl(tmp_path / "a.jsonl", [*rows, {"id": 7}])
        want = {1: "null text", 2: "text is NaN, not a string", 7: "missing key 'text'"}
    else:
        column = pa.array([t if isinstance(t, str) else None for t in TEXTS], pa.string())
        pq.write_table(pa.table({"id": range(7), "text": column}), tmp_path / "a.parquet")
        want = {1: "null text", 2: "null text"}
    got = read_all(config(format, tmp_path))
    assert got.texts == ["a", "", "   ", "nan", "None"]
    assert got.ids == [0, 3, 4, 5, 6]
    assert {r.id: r.reason for r in got.dead_letters} == want
    assert len(got.texts) + len(got.dead_letters) == (8 if format == "jsonl" else 7)


def pipe_13_lines() -> list[str]:
    lines = [json.dumps({"id": i, "text": f"text {i}"}) for i in range(1, 101)]
    lines[49] = '{"id":50,"text":"tru'
    lines[69] = "[70]"
    lines[89] = json.dumps({"id": 90, "text": {"nested": "yes"}})
    return lines


@pytest.mark.parametrize("rows_per_shard", [1, 7, 50, 20_000])
def test_pipe_13_bad_json_lines_lose_only_themselves(tmp_path: Path, rows_per_shard: int) -> None:
    lines = pipe_13_lines()
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    got = read_all(config("jsonl", tmp_path, rows_per_shard=rows_per_shard))
    good = [i for i in range(1, 101) if i not in (50, 70, 90)]
    assert got.ids == good
    assert got.texts == [f"text {i}" for i in good]
    assert got.places == ["a.jsonl:50", "a.jsonl:70", "a.jsonl:90"]
    reasons = [report.reason for report in got.dead_letters]
    assert reasons[0].startswith("not JSON: Unterminated string")
    assert reasons[1:] == ["not a JSON object", "text is an object, not a string"]
    assert [report.id for report in got.dead_letters] == [None, None, 90]


def test_pipe_13_a_cut_parquet_file_and_another_format_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "text": ["a"]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(UsageError, match=r"a\.parquet: a broken or cut Parquet file"):
        plan_shards(config("parquet", tmp_path))
    path.write_text('{"id": 1, "text": "a"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"a\.parquet: not a Parquet file"):
        plan_shards(config("parquet", path))
    (tmp_path / "b.jsonl").write_bytes(whole)
    with pytest.raises(UsageError, match=r"b\.jsonl: wanted JSON lines, got a Parquet file"):
        plan_shards(config("jsonl", tmp_path))


@pytest.mark.parametrize(("suffix", "codec"), [(".gz", "gzip"), (".zst", "zstd")])
def test_pipe_13_cut_compressed_data_is_named(tmp_path: Path, suffix: str, codec: str) -> None:
    data = "\n".join(pipe_13_lines()).encode()
    packed = pa.compress(data, codec=codec, asbytes=True)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed)
    assert len(read_all(config("jsonl", tmp_path, rows_per_shard=9)).texts) == 97
    path.write_bytes(packed[:-30])
    with pytest.raises(SourceReadError, match=r"a\.jsonl\.(gz|zst): cannot be read"):
        plan_shards(config("jsonl", tmp_path))
    (tmp_path / "b.jsonl").write_bytes(packed)
    with pytest.raises(UsageError, match=rf"b\.jsonl: .*name should end in \{suffix}"):
        plan_shards(config("jsonl", tmp_path / "b.jsonl"))


def test_pipe_13_pages_cut_after_planning_fail_the_shard_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(1000), "text": [f"text {i}" for i in range(1000)]})
    pq.write_table(table, path, compression="zstd")
    source = config("parquet", path)
    data = bytearray(path.read_bytes())
    data[4:600] = bytes(596)
    path.write_bytes(data)
    (shard,) = plan_shards(source).shards
    with pytest.raises(SourceReadError, match=r"a\.parquet: cannot be read"):
        read_shard(shard, source)
