"""Vectors as JSON lines, .npy and Parquet: exact, typed, and whole or not there at all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedder import Embedded
from pipeline.errors import UsageError
from pipeline.vector_output import JsonLinesWriter, open_writer, output_format

FORMATS = ["jsonl", "npy", "parquet"]


def embedded(rows, dim=4, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return Embedded(vectors, np.arange(3, 3 + rows), np.arange(rows) % 2 == 1)


def write(path, file_format, *blocks, dim=4):
    with open_writer(str(path), file_format, dim) as writer:
        for rows, ids in blocks:
            writer.write(rows, ids)


def parsed(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_json_numbers_parse_back_to_the_same_bits(values):
    vector = np.array([values], dtype=np.float32)
    file = io.BytesIO()
    writer = JsonLinesWriter(file, len(values))
    writer.write(Embedded(vector, np.array([3]), np.array([False])), None)
    back = np.array(json.loads(file.getvalue())["vector"], dtype=np.float32)
    assert back.tobytes() == vector.tobytes()


def test_json_line_has_id_tokens_truncation_and_vector(tmp_path):
    rows = embedded(2)
    write(tmp_path / "v.jsonl", "jsonl", (rows, ["a\n\u65e5\"'", 10**40]))
    first, second = parsed(tmp_path / "v.jsonl")
    assert list(first) == ["id", "n_tokens", "truncated", "vector"]
    assert (first["id"], first["n_tokens"], first["truncated"]) == ("a\n\u65e5\"'", 3, False)
    assert (second["id"], second["n_tokens"], second["truncated"]) == (10**40, 4, True)
    np.testing.assert_array_equal(np.float32(second["vector"]), rows.vectors[1])


def test_json_line_without_ids_has_no_id(tmp_path):
    write(tmp_path / "v.jsonl", "jsonl", (embedded(1), None))
    assert list(parsed(tmp_path / "v.jsonl")[0]) == ["n_tokens", "truncated", "vector"]


def test_npy_is_one_float32_array_of_all_blocks(tmp_path):
    write(tmp_path / "v.npy", "npy", (embedded(3), None), (embedded(2, seed=1), [1, 2]))
    array = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert array.dtype == np.float32
    want = np.concatenate([embedded(3).vectors, embedded(2, seed=1).vectors])
    np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize(
    ("ids", "kind"), [([1, 2, 3], pa.int64()), (["a", "", "\u65e5"], pa.string()), (None, None)]
)
def test_parquet_has_exact_types_and_values(tmp_path, ids, kind):
    rows = embedded(3)
    write(tmp_path / "v.parquet", "parquet", (rows, ids))
    table = pq.read_table(tmp_path / "v.parquet")
    fields = {} if kind is None else {"id": kind}
    fields |= {"vector": pa.list_(pa.float32(), 4), "n_tokens": pa.int32(), "truncated": pa.bool_()}
    assert dict(zip(table.schema.names, table.schema.types)) == fields
    assert table["n_tokens"].to_pylist() == [3, 4, 5]
    assert table["truncated"].to_pylist() == [False, True, False]
    assert ids is None or table["id"].to_pylist() == ids
    flat = table["vector"].combine_chunks().flatten().to_numpy()
    np.testing.assert_array_equal(flat.reshape(3, 4), rows.vectors)


def test_parquet_reads_in_pandas(tmp_path):
    rows = embedded(3)
    write(tmp_path / "v.parquet", "parquet", (rows, ["a", "b", "c"]))
    frame = pd.read_parquet(tmp_path / "v.parquet")
    assert list(frame["id"]) == ["a", "b", "c"]
    np.testing.assert_array_equal(np.stack(frame["vector"]), rows.vectors)


def test_parquet_keeps_the_largest_integers_of_its_type(tmp_path):
    ids = [-(2**63), 2**63 - 1, 0]
    write(tmp_path / "v.parquet", "parquet", (embedded(3), ids))
    assert pq.read_table(tmp_path / "v.parquet")["id"].to_pylist() == ids


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, 10**40])
def test_parquet_refuses_an_integer_beyond_its_type(tmp_path, bad):
    with pytest.raises(UsageError, match=str(bad)):
        write(tmp_path / "v.parquet", "parquet", (embedded(2), [1, bad]))
    assert list(tmp_path.iterdir()) == []


def test_parquet_refuses_a_string_that_is_not_unicode(tmp_path):
    with pytest.raises(UsageError, match="id"):
        write(tmp_path / "v.parquet", "parquet", (embedded(2), ["a", "\ud800"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocks", [[[1, "a"]], [[1, 2], ["a", "b"]], [["a", "b"], [1, 2]]])
def test_parquet_refuses_mixed_ids_in_and_across_blocks(tmp_path, blocks):
    with pytest.raises(UsageError, match="integers in some rows and strings in others"):
        write(tmp_path / "v.parquet", "parquet", *((embedded(2), ids) for ids in blocks))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file_format", FORMATS)
def test_no_rows_make_a_readable_file_of_the_right_width(tmp_path, file_format):
    path = tmp_path / f"v.{file_format}"
    write(path, file_format, dim=384)
    if file_format == "jsonl":
        assert path.read_bytes() == b""
    elif file_format == "npy":
        assert np.load(path).shape == (0, 384)
    else:
        schema = pq.read_table(path).schema
        assert schema.field("vector").type == pa.list_(pa.float32(), 384)


@pytest.mark.parametrize(
    ("name", "want"),
    [("a.jsonl", "jsonl"), ("a.ndjson", "jsonl"), ("x/y.npy", "npy"), ("a.b.parquet", "parquet")],
)
def test_ending_chooses_the_format(name, want):
    assert output_format(name, None) == want


def test_format_asked_for_wins_and_standard_output_is_json_lines():
    assert output_format("a.npy", "parquet") == "parquet"
    assert output_format("-", None) == "jsonl"
    assert output_format("-", "npy") == "npy"


@pytest.mark.parametrize("name", ["a.csv", "a", "", ".npy", "a.npy.gz", "jsonl", "a.", "/"])
def test_ending_that_says_nothing_is_refused_with_the_known_ones(name):
    with pytest.raises(
        UsageError, match=r"wanted an ending of \.jsonl, \.ndjson, \.npy, \.parquet"
    ):
        output_format(name, None)


@pytest.mark.parametrize("file_format", FORMATS)
def test_failure_midway_leaves_the_old_file_and_no_part(tmp_path, file_format):
    path = tmp_path / f"v.{file_format}"
    path.write_bytes(b"old")

    def fail():
        with open_writer(str(path), file_format, 4) as writer:
            writer.write(embedded(2), None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("file_format", FORMATS)
def test_old_file_is_there_until_the_new_one_is_whole(tmp_path, file_format):
    path = tmp_path / f"v.{file_format}"
    path.write_bytes(b"old")
    with open_writer(str(path), file_format, 4) as writer:
        writer.write(embedded(2), None)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() != b"old"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_missing_folders_are_made(tmp_path):
    write(tmp_path / "a" / "b" / "v.npy", "npy", (embedded(1), None))
    assert (tmp_path / "a" / "b" / "v.npy").is_file()


@pytest.mark.parametrize("name", ["folder", ".", "", "/", "file/v.npy", "n" * 300, "\x00"])
def test_place_that_cannot_be_written_is_refused_by_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(UsageError, match="cannot be written"):
        write(name, "npy", (embedded(1), None))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_pipe_or_device_is_not_replaced_by_a_file(tmp_path):
    """Renaming over it would, with /dev/null and enough rights, take that from the machine."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets a writer through, if one comes
    try:
        with contextlib.suppress(UsageError):
            write(path, "jsonl", (embedded(1), None))
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)
