"""The options of a run, through the whole job: formats, lengths, columns, duplicates."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Embedder
from tests.e2e.runs import (
    Job,
    check_rows,
    rows,
    texts_of,
    vectors_of,
    words,
    write_lines,
)

LONG = 40  # words; more than 16 tokens, less than 64


@pytest.fixture(scope="session")
def short_embedder(tiny_model: Path):
    """The tiny model with a limit of 16 tokens."""
    with Embedder.open(tiny_model, max_seq_len=16) as opened:
        yield opened


def run(job: Job) -> pa.Table:
    """The rows of version 1, after a run that succeeds."""
    result = job.run()
    assert result.code == 0, result.err
    assert job.versions() == [1]
    assert job.index().verify().ok
    return job.table()


def test_parquet_with_kept_columns_and_half_precision(job: Job, embedder: Embedder) -> None:
    made = rows(range(50))
    table = pa.table(
        {
            "key": [row["id"] for row in made],
            "body": [row["text"] for row in made],
            "lang": pa.array(["en", None] * 25),
            "rank": pa.array(range(50), pa.int16()),
        }
    )
    pq.write_table(table, job.corpus / "a.parquet", row_group_size=20)
    job.set("source", format="parquet", id_column="key", text_column="body")
    job.set("source", keep_columns=["rank", "lang"], rows_per_shard=15)
    job.set("sink", vector_type="float16")
    found = run(job)
    assert found.column_names[:4] == ["id", "rank", "lang", "vector"]
    assert found.schema.field("vector").type == pa.list_(pa.float16(), 32)
    assert found["rank"].to_pylist() == list(range(50))
    assert found["lang"].to_pylist() == ["en", None] * 25
    check_rows(found, texts_of(made), embedder, tolerance=5e-4)
    want = embedder.encode([row["text"] for row in made]).astype(np.float16)
    assert (np.abs(vectors_of(found) - want.astype(np.float32)) <= 2**-11).all()


def test_csv_with_texts_above_the_limit_as_dead_letters(job: Job, short_embedder: Embedder) -> None:
    made = rows(range(30), length=6)
    long = {"id": "long", "text": f'a "quoted"\nline, and\n{words(LONG, 1)}'}
    with open(job.corpus / "a.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows([*made[:10], long, *made[10:]])
    job.set("source", format="csv", rows_per_shard=8).set("model", max_seq_len=16)
    job.set("failure", too_long="dead_letter", max_bad_fraction=0.1)
    found = run(job)
    check_rows(found, texts_of(made), short_embedder)
    assert not any(found["truncated"].to_pylist())
    ((_, letter),) = job.index().dead_letters()
    assert letter.id == "long"
    assert letter.where.startswith("a.csv")
    assert "more than 16 tokens" in letter.reason
    assert "a.csv" in job.read("status").out


def test_texts_above_the_limit_are_cut_and_marked(job: Job, short_embedder: Embedder) -> None:
    made = [*rows(range(10), length=6), *rows(range(10, 20), length=LONG)]
    write_lines(job.corpus / "a.jsonl", made)
    job.set("model", max_seq_len=16)
    found = run(job)
    check_rows(found, texts_of(made), short_embedder)
    by_id = dict(zip(found["id"].to_pylist(), found["truncated"].to_pylist()))
    assert [by_id[row["id"]] for row in made] == [False] * 10 + [True] * 10
    assert max(found["n_tokens"].to_pylist()) == 16


def check_chunks(found: pa.Table, texts: dict[str, str], embedder: Embedder, most: int) -> None:
    """Chunks of each text are in order, cover its words, and have vectors of their own slice."""
    assert found.column_names[:4] == ["id", "chunk_index", "chunk_start", "chunk_end"]
    slices: list[str] = []
    seen: dict[str, list[tuple[int, int]]] = {id: [] for id in texts}
    for row in found.drop_columns(["vector"]).to_pylist():
        assert row["chunk_index"] == len(seen[row["id"]])
        seen[row["id"]].append((row["chunk_start"], row["chunk_end"]))
        slices.append(texts[row["id"]][row["chunk_start"] : row["chunk_end"]])
        assert row["n_tokens"] <= most + 2
        assert not row["truncated"]
    for id, spans in seen.items():
        covered = {at for start, end in spans for at in range(start, end)}
        assert {at for at, c in enumerate(texts[id]) if not c.isspace()} <= covered
    np.testing.assert_allclose(vectors_of(found), embedder.encode(slices), rtol=0, atol=1e-6)


def test_text_files_in_chunks_with_overlap(job: Job, embedder: Embedder) -> None:
    texts = {f"deep/{n}.txt": words(n * 30 + 5, n) for n in range(6)}
    for name, text in texts.items():
        path = job.corpus / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    job.set("source", format="text").set("chunking", max_tokens=20, overlap_tokens=6)
    found = run(job)
    check_chunks(found, texts, embedder, most=20)
    last = [row for row in found.drop_columns(["vector"]).to_pylist() if "5.txt" in row["id"]]
    overlaps = [
        len(texts["deep/5.txt"][after["chunk_start"] : before["chunk_end"]].split())
        for before, after in itertools.pairwise(last)
    ]
    assert all(1 <= repeated <= 6 for repeated in overlaps)


def test_texts_above_the_limit_become_several_rows(job: Job, short_embedder: Embedder) -> None:
    made = [*rows(range(5), length=5), *rows(range(5, 8), length=LONG)]
    write_lines(job.corpus / "a.jsonl", made)
    job.set("model", max_seq_len=16).set("failure", too_long="chunk")
    found = run(job)
    check_chunks(found, texts_of(made), short_embedder, most=14)
    counts = [found["id"].to_pylist().count(row["id"]) for row in made]
    assert counts[:5] == [1] * 5
    assert min(counts[5:]) >= 3


def test_functions_and_classes_of_python_files(job: Job) -> None:
    source = 'class River:\n    """Long."""\n\n    def run(self):\n        return 1\n'
    (job.corpus / "water.py").write_text(source + "\n\ndef find(a):\n    return a\n")
    (job.corpus / "broken.py").write_text("def (:\n")
    job.set("source", format="python", keep_columns=["kind", "line"])
    job.set("failure", max_bad_fraction=0.3)
    found = run(job)
    got = list(zip(*(found[name].to_pylist() for name in ("id", "kind", "line"))))
    assert got == [
        ("water.py:River", "class", 1),
        ("water.py:River.run", "function", 4),
        ("water.py:find", "function", 8),
    ]
    ((_, letter),) = job.index().dead_letters()
    assert letter.where.startswith("broken.py:1")


@pytest.mark.parametrize("policy", ["keep_first", "dead_letter"])
def test_the_first_of_rows_with_one_id_is_kept(job: Job, embedder: Embedder, policy: str) -> None:
    made = rows(range(40))
    again = [{"id": "r3", "text": "another river"}, {"id": "r25", "text": "another dog"}]
    write_lines(job.corpus / "a.jsonl", made[:20])
    with gzip.open(job.corpus / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in [again[0], *made[20:], again[1]])
    job.set("source", duplicates=policy, rows_per_shard=10)
    job.set("failure", max_bad_fraction=0.1)
    found = run(job)
    check_rows(found, texts_of(made), embedder)
    letters = [letter for _, letter in job.index().dead_letters()]
    if policy == "keep_first":
        assert letters == []
    else:
        assert [(x.id, x.reason) for x in letters] == [
            ("r3", "the id of an earlier row"),
            ("r25", "the id of an earlier row"),
        ]
    assert job.run().out.startswith("nothing to do: version 1 holds all 40 rows")


def test_a_limit_is_kept_and_told(job: Job, embedder: Embedder) -> None:
    made = rows(range(60))
    write_lines(job.corpus / "a.jsonl", made)
    job.set("source", limit=25, rows_per_shard=10)
    result = job.run()
    assert result.code == 0, result.err
    assert result.err.startswith("source.limit: only the first 25 rows; ")
    check_rows(job.table(), texts_of(made[:25]), embedder)


def test_vectors_are_those_of_the_configured_prompt_and_dim(job: Job, tiny_model: Path) -> None:
    made = rows(range(20))
    write_lines(job.corpus / "a.jsonl", made)
    job.set("model", prompt_text="find a ", dim=8, pooling="cls")
    found = run(job)
    with Embedder.open(tiny_model, dim=8, pooling="cls") as other:
        want = other.encode([row["text"] for row in made], prompt_text="find a ")
    assert found["id"].to_pylist() == [row["id"] for row in made]
    np.testing.assert_allclose(vectors_of(found), want, rtol=0, atol=1e-6)
    hit = job.read("search", made[5]["text"], "-k", "1")
    assert hit.out.split()[:2] == ["1.0000", "r5"]
