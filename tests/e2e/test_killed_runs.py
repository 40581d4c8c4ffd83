"""The process of a run dies at any moment; the next run finishes what it left."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import Embedder
from tests.e2e.runs import (
    TOLERANCE,
    Job,
    Result,
    Row,
    check_rows,
    check_sound,
    ended,
    texts_of,
    vectors_by_id,
)

TICK_SECONDS = 0.02


def kill_after(job: Job, receipts: int, seconds: float) -> int:
    """Start the run, kill it `seconds` after it wrote so many receipts, return its exit code."""
    before = len(job.receipts())
    process = job.start()
    try:
        while not ended(process, TICK_SECONDS) and len(job.receipts()) < before + receipts:
            pass
        ended(process, seconds)
    finally:
        process.kill()
        process.communicate()
    return process.returncode


def kill_and_finish(
    job: Job,
    moments: list[tuple[int, float]],
    calm: Job,
    texts: dict[Any, str],
    embedder: Embedder,
    *,
    shards: int,
) -> None:
    """Kill runs of `job` at those moments, run once more, and compare with an undisturbed run."""
    for receipts, seconds in moments:
        code = kill_after(job, receipts, seconds)
        assert code == -9, f"the run ended before it was killed: {moments}"
        assert job.versions() == []
    done = len(job.receipts())
    assert done > 0, f"nothing was done before it was broken off: {moments}"
    result = job.run()
    assert result.code == 0, result.err
    assert f"{done} done by a broken run, {shards - done} to embed" in result.err
    assert job.versions() == [1]
    check_rows(job.table(), texts, embedder)
    check_sound(job)
    found, want = vectors_by_id(job.table()), vectors_by_id(calm.table())
    for id, vector in want.items():
        np.testing.assert_allclose(found[id], vector, rtol=0, atol=TOLERANCE)


@pytest.fixture
def breakable(finished: tuple[Job, Result], tmp_path: Path, sink_of: dict[str, str]) -> Job:
    """A job over the corpus of the finished one, into a place of its own."""
    calm, _ = finished
    job = Job(tmp_path, calm.model, calm.address, corpus=calm.corpus, **sink_of)
    return job.set("source", rows_per_shard=30)


def test_three_killed_runs_leave_a_clean_run_every_row_once(
    breakable: Job, finished: tuple[Job, Result], corpus_rows: list[Row], embedder: Embedder
) -> None:
    random_ = random.Random(breakable.sink)
    moments = [(0, random_.uniform(0.2, 3.0))]
    moments += [(random_.randint(1, 8), random_.uniform(0, 0.1)) for _ in range(2)]
    texts = texts_of(corpus_rows)
    kill_and_finish(breakable, moments, finished[0], texts, embedder, shards=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_killed_runs_leave_a_clean_run_every_row_once(
    breakable: Job,
    finished: tuple[Job, Result],
    corpus_rows: list[Row],
    embedder: Embedder,
    seed: int,
) -> None:
    random_ = random.Random(seed)
    moments = [(random_.randint(0, 3), random_.uniform(0, 0.3)) for _ in range(10)]
    breakable.set("source", rows_per_shard=6)
    texts = texts_of(corpus_rows)
    kill_and_finish(breakable, moments, finished[0], texts, embedder, shards=200)
