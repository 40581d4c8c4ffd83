"""Random bytes: the union of all shards is what Python's own readers make of the whole file."""

from __future__ import annotations

import csv
import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_corpus import Corpus, config, read_all

from pipeline.errors import UsageError
from pipeline.source import plan_shards

SHARD_ROWS = (1, 2, 5, 20_000)
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def corpora(format: str, name: str, data: bytes) -> list[Corpus]:
    """All rows of one file, for several shard sizes; none when it has no rows."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(data)
        try:
            plan_shards(config(format, folder))
        except UsageError as error:
            assert "no rows in" in str(error)
            return []
        return [read_all(config(format, folder, rows_per_shard=n)) for n in SHARD_ROWS]


json_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.integers(), max_size=2),
)
json_lines = st.one_of(
    st.builds(
        lambda row, ascii: json.dumps(row, ensure_ascii=ascii).encode(),
        st.fixed_dictionaries({"id": json_values, "text": json_values}),
        st.booleans(),
    ),
    st.builds(lambda row: json.dumps(row).encode(), st.dictionaries(st.text("xi"), json_values)),
    st.sampled_from([b"", b"   ", b"\xef\xbb\xbf", b'{"id": 1', b"[1]", b"nul", b'"caf\xe9"']),
    st.binary(max_size=12).filter(lambda raw: b"\n" not in raw),
)
FIRST = b'{"id": "first", "text": "a"}'


def good_json_rows(data: bytes) -> tuple[list[tuple[str, str]], int]:
    """Id (as a string) and text of each good row, and the number of bad ones."""
    good: list[tuple[str, str]] = []
    bad = 0
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        try:
            row: Any = json.loads(raw.decode("utf-8"))
        except ValueError:
            row = None
        fine = isinstance(row, dict) and type(row.get("id")) in (int, str)
        if fine and isinstance(row.get("text"), str):
            good.append((str(row["id"]), row["text"]))
        else:
            bad += 1
    return good, bad


@QUICK
@given(st.lists(json_lines, max_size=12), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_jsonl_shards_are_the_lines_that_json_reads(
    lines: list[bytes], end: bytes, last_end: bool
) -> None:
    data = end.join([FIRST, *lines]) + (end if last_end else b"")
    want, bad = good_json_rows(data)
    for name, stored in (("a.jsonl", data), ("a.jsonl.gz", pa.compress(data, "gzip", True))):
        for got in corpora("jsonl", name, stored):
            assert list(zip(map(str, got.ids), got.texts, strict=True)) == want
            assert len(got.dead_letters) == bad


@QUICK
@given(st.lists(json_values, min_size=1, max_size=6))
def test_jsonl_kept_columns_hold_every_value_in_every_shard(values: list[Any]) -> None:
    lines = [json.dumps({"id": i, "text": "a", "k": value}) for i, value in enumerate(values)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
        for rows in SHARD_ROWS:
            source = config("jsonl", folder, keep_columns=("k",), rows_per_shard=rows)
            got = read_all(source).table["k"]
            for was, value in zip(values, got.to_pylist(), strict=True):
                is_nan = isinstance(was, float) and math.isnan(was)
                if pa.types.is_string(got.type) and not isinstance(was, str):
                    missing = was is None or is_nan
                    assert value is None if missing else json.loads(value) == was
                elif is_nan:
                    assert math.isnan(value)
                else:
                    assert value == (float(was) if isinstance(value, float) else was)


csv_bytes = st.lists(
    st.sampled_from(
        [b"a", b"7", b" ", b",", b'"', b'""', b"\n", b"\r\n", b"\r", b"\0", "é".encode()]
    )
).map(b"".join)


@QUICK
@given(csv_bytes, st.booleans())
def test_csv_shards_are_the_records_that_csv_reads(body: bytes, bom: bool) -> None:
    data = (b"\xef\xbb\xbf" if bom else b"") + b"id,text\n" + body
    text = data.decode("utf-8-sig").replace("\0", "\ue000")
    records = [row for row in csv.reader(io.StringIO(text, newline="")) if row][1:]
    records = [[field.replace("\ue000", "\0") for field in row] for row in records]
    closed = list(_is_closed(text))
    good = [
        (row[0], row[1])
        for row, whole in zip(records, closed, strict=True)
        if whole and len(row) == 2 and all(row)
    ]
    for name, stored in (("a.csv", data), ("a.csv.zst", pa.compress(data, "zstd", True))):
        for got in corpora("csv", name, stored):
            assert list(zip(got.ids, got.texts, strict=True)) == good
            assert len(got.dead_letters) == len(records) - len(good)


def _is_closed(text: str) -> list[bool]:
    """For each record below the header, whether its quotes are closed: only the last may not be."""
    records = [row for row in csv.reader(io.StringIO(text, newline="")) if row][1:]
    tail = [row for row in csv.reader(io.StringIO(text + "\r\nmark", newline="")) if row]
    open_end = bool(records) and tail[-1] != ["mark"]
    return [True] * (len(records) - 1) + [not open_end] * bool(records)


@QUICK
@given(st.binary(max_size=200))
@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_no_bytes_raise_anything_but_a_usage_error(format: str, data: bytes) -> None:
    head = b"id,text\n" if format == "csv" else FIRST + b"\n"
    for got in corpora(format, f"a.{format}", head + data):
        assert len(got.texts) + len(got.dead_letters) > 0
