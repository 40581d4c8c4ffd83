"""What the other commands say of an index that a run has made."""

from __future__ import annotations

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline import Embedder
from tests.e2e.runs import Job, Result, Row, call, texts_of, vectors_of


@pytest.fixture(scope="session")
def done(finished: tuple[Job, Result]) -> Job:
    return finished[0]


def test_plan_lists_every_shard_and_writes_nothing(done: Job) -> None:
    before = done.stored()
    result = done.plan()
    assert result.code == 0
    first, *shards = result.out.splitlines()
    assert first.startswith("40 shards, 1,200 rows in 20 files: 40 kept from version 1, ")
    assert len(shards) == 40
    assert all(re.match(r"  keep   [0-9a-f]{32} +30 rows  \d\d\.jsonl$", line) for line in shards)
    assert done.stored() == before


def test_plan_of_a_new_index_tells_tokens_and_time_and_writes_nothing(
    done: Job, job: Job, corpus_rows: list[Row]
) -> None:
    job.corpus = done.corpus
    job.set("source", rows_per_shard=30)
    result = job.plan()
    assert result.code == 0
    assert result.out.count("\n  embed  ") == 40
    estimate = re.search(r"about ([\d,]+) tokens in 1,200 rows to embed; about .+ s", result.out)
    assert estimate is not None
    tokens = done.index().version.tokens
    assert int(estimate[1].replace(",", "")) == pytest.approx(tokens, rel=0.2)
    assert job.stored() == []


def test_status_tells_the_newest_version(done: Job) -> None:
    result = done.read("status")
    assert result.code == 0
    head = done.index().version
    assert result.out.splitlines()[0] == (
        f"version 1 of {head.created}: 1,200 rows of 32 float32 values in 40 parts, "
        f"{head.tokens:,} tokens, 0 dead letters"
    )
    assert f"  model            {done.model}\n" in result.out
    assert "not in a version" not in result.out


def test_status_of_a_place_without_an_index(job: Job) -> None:
    result = job.read("status")
    assert (result.code, result.out) == (0, f"{job.sink}: no version committed yet\n")


def test_verify_reads_everything(done: Job) -> None:
    result = done.read("verify")
    assert result.code == 0
    assert result.out.startswith("version 1: 40 parts, 1,200 rows read, 0 duplicate ids; ")


def test_files_are_parquet_that_anyone_reads(done: Job) -> None:
    result = done.read("files")
    assert result.code == 0
    names = result.out.splitlines()
    assert len(names) == 40
    tables = [pq.read_table(name) for name in names]
    ids = [id for table in tables for id in table["id"].to_pylist()]
    assert sorted(ids) == list(range(1200))


def test_versions_are_listed(done: Job) -> None:
    result = done.read("versions")
    assert result.code == 0
    (line,) = result.out.splitlines()
    assert re.fullmatch(r" +1  \S+ +1,200 rows +40 parts +0 dead letters  [0-9a-f]{12}", line)


@pytest.mark.parametrize("query", ["river", "a long dog", "1199 house in the world"])
def test_search_finds_the_exact_nearest(
    done: Job, corpus_rows: list[Row], embedder: Embedder, query: str
) -> None:
    result = done.read("search", query, "-k", "7")
    assert result.code == 0
    found = [line.split() for line in result.out.splitlines()]
    texts = texts_of(corpus_rows)
    (vector,) = embedder.encode([query]).astype(np.float64)
    scores = embedder.encode(list(texts.values())).astype(np.float64) @ vector
    by_id = dict(zip(texts, scores))
    best = np.sort(scores)[::-1][:7]
    assert len({int(line[1]) for line in found}) == 7
    np.testing.assert_allclose([by_id[int(line[1])] for line in found], best, atol=1e-6)
    np.testing.assert_allclose([float(line[0]) for line in found], best, atol=1e-4)


def test_search_finds_a_row_by_its_own_text(done: Job, corpus_rows: list[Row]) -> None:
    row = corpus_rows[700]
    result = done.read("search", row["text"], "-k", "1")
    assert result.out.split()[:2] == ["1.0000", str(row["id"])]


@pytest.mark.parametrize("command", ["verify", "files", "versions", "search"])
def test_a_place_without_an_index_is_named(job: Job, command: str) -> None:
    result = call(command, job.sink, *(["river"] if command == "search" else []))
    assert result.code == 1
    assert result.err == f"rayvec: {job.sink}: no index here: no version was committed\n"


def test_a_version_that_is_not_there_is_named(done: Job) -> None:
    result = done.read("files", "--version", "7")
    assert result.code == 1
    assert "no version 7; there are 1 to 1" in result.error


def test_vectors_are_what_any_reader_sees(done: Job) -> None:
    first = done.read("files").out.splitlines()[0]
    vectors = vectors_of(pq.read_table(first))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
