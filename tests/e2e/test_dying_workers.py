"""Workers that die or fail while they embed: bounded retries, and nothing done is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers import Driver
from pipeline import Embedder
from pipeline.errors import RayvecError
from pipeline.run import PreparedRun, commit, execute, prepare
from tests.e2e.dying_driver import MARK, DyingDriver, FailingDriver, LostDriver
from tests.e2e.runs import Job, Row, check_rows, check_sound, rows, texts_of, write_lines

LOST = pytest.param(LostDriver, marks=pytest.mark.slow)
SHARDS = 8
ROWS = 20


@pytest.fixture
def marked(job: Job) -> list[Row]:
    """A corpus of eight shards; the sixth holds one marked text."""
    made = rows(range(SHARDS * ROWS))
    made[5 * ROWS + 3]["text"] += MARK
    write_lines(job.corpus / "a.jsonl", made)
    job.set("source", rows_per_shard=ROWS)
    return made


@pytest.fixture(scope="module")
def embedder(tiny_model: Path) -> Iterator[Embedder]:
    """The model in float32, which every driver has."""
    with Embedder.open(tiny_model, dtype="float32") as opened:
        yield opened


def with_driver(job: Job, driver: Driver[Any]) -> PreparedRun:
    """The run of `job`, prepared in float32, whose workers get clones of `driver`."""
    job.set("model", dtype="float32")
    run = prepare(job.config())
    return replace(run, model=replace(run.model, driver=driver))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", [DyingDriver, LOST])
def test_a_worker_that_is_killed_or_loses_its_device_once_costs_nothing_but_time(
    job: Job,
    marked: list[Row],
    tmp_path: Path,
    embedder: Embedder,
    workers: int,
    kind: type[DyingDriver],
) -> None:
    job.set("workers", count=workers)
    run = with_driver(job, kind(tmp_path, deaths=1))
    payloads = list(execute(run))
    assert len(list(tmp_path.glob("death-*"))) == 1
    assert len(payloads) == SHARDS
    assert commit(run).version == 1
    check_rows(job.table(), texts_of(marked), embedder)
    check_sound(job)


@pytest.mark.parametrize("kind", [DyingDriver, LOST])
def test_a_text_that_always_kills_its_worker_ends_the_run_and_keeps_what_is_done(
    job: Job, marked: list[Row], tmp_path: Path, embedder: Embedder, kind: type[DyingDriver]
) -> None:
    job.set("failure", max_shard_retries=1)
    with pytest.raises(RayvecError) as failed:
        list(execute(with_driver(job, kind(tmp_path, deaths=100))))
    assert failed.value.exit_code == 1
    assert len(str(failed.value).splitlines()) == 1
    assert len(list(tmp_path.glob("death-*"))) == 2
    assert job.versions() == []
    done = len(job.receipts())
    assert done >= 1
    result = job.run()
    assert result.code == 0, result.err
    assert f"{done} done by a broken run, {SHARDS - done} to embed" in result.err
    check_rows(job.table(), texts_of(marked), embedder)


def test_an_error_in_a_worker_ends_the_run_with_its_cause_in_one_line(
    job: Job, marked: list[Row]
) -> None:
    job.set("failure", max_shard_retries=0)
    with pytest.raises(RayvecError, match="the marked text was met") as failed:
        list(execute(with_driver(job, FailingDriver())))
    assert failed.value.exit_code == 1
    assert len(str(failed.value).splitlines()) == 1
    assert job.versions() == []
