"""A corpus that changes: what changed is embedded, and the rest is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import Embedder
from pipeline.errors import RayvecError
from pipeline.run import commit, execute, prepare
from tests.e2e.runs import (
    NOWHERE,
    Job,
    check_rows,
    check_sound,
    finish,
    rows,
    texts_of,
    vectors_by_id,
    write_lines,
)

FILES = {"a": range(20), "b": range(20, 40), "c": range(40, 60), "d": range(60, 80)}


@pytest.fixture(scope="module")
def first_version(
    ray_address: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Job:
    """Four files, a shard each, in version 1. Not to be changed."""
    job = Job(tmp_path_factory.mktemp("first_version"), tiny_model, ray_address)
    for name, numbers in FILES.items():
        write_lines(job.corpus / f"{name}.jsonl", rows(numbers))
    job.set("source", rows_per_shard=20)
    assert job.run().code == 0
    return job


@pytest.fixture
def job(first_version: Job, tmp_path: Path) -> Job:
    """A copy of the job with one version."""
    return first_version.copy(tmp_path)


@pytest.fixture
def texts() -> dict[Any, str]:
    """id -> text of that version."""
    return texts_of(row for numbers in FILES.values() for row in rows(numbers))


def replace_file(job: Job, texts: dict[Any, str], name: str, numbers: range, length: int) -> None:
    """Give a file other rows; an empty range removes it."""
    for number in FILES.get(name, ()):
        del texts[f"r{number}"]
    if len(numbers) == 0:
        (job.corpus / f"{name}.jsonl").unlink()
        return
    write_lines(job.corpus / f"{name}.jsonl", rows(numbers, length))
    texts |= texts_of(rows(numbers, length))


def test_only_what_changed_is_embedded(job: Job, texts: dict[Any, str], embedder: Embedder) -> None:
    before, first = job.receipts(), job.table(1)
    replace_file(job, texts, "b", range(20, 40), length=5)
    replace_file(job, texts, "c", range(0), length=0)
    replace_file(job, texts, "e", range(100, 120), length=8)
    planned = job.plan()
    assert planned.out.count("\n  embed  ") == 2
    assert planned.out.count("\n  keep   ") == 2
    result = job.run()
    assert result.code == 0, result.err
    assert "2 kept from version 1, 0 done by a broken run, 2 to embed, 2 dropped" in result.err
    assert len(job.receipts() - before) == 2
    assert job.versions() == [1, 2]
    check_rows(job.table(), texts, embedder)
    check_sound(job)
    assert job.table(1).equals(first)
    lines = job.read("versions").out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2"]


def test_a_file_that_goes_and_comes_back_needs_no_embedding(
    job: Job, texts: dict[Any, str], embedder: Embedder
) -> None:
    path = job.corpus / "c.jsonl"
    away = path.rename(job.folder / "c.jsonl")
    gone = job.run_process(address=NOWHERE)
    assert gone.code == 0, gone.err
    assert "committed version 2: 60 rows in 3 parts" in gone.out
    rest = {id: text for id, text in texts.items() if id not in texts_of(rows(FILES["c"]))}
    check_rows(job.table(), rest, embedder)
    away.rename(path)
    back = job.run()
    assert back.code == 0, back.err
    assert ", 0 to embed, " in back.err
    check_rows(job.table(), texts, embedder)
    assert len(job.receipts()) == 4


def test_a_full_run_embeds_everything_again_and_keeps_the_old_version(
    job: Job, texts: dict[Any, str], embedder: Embedder
) -> None:
    first = job.table(1)
    result = job.run("--set", "run.mode=full")
    assert result.code == 0, result.err
    assert "0 kept from version 1, 0 done by a broken run, 4 to embed, 0 dropped" in result.err
    assert job.versions() == [1, 2]
    old, new = job.index(1), job.index(2)
    assert {e.part for e in old.parts()}.isdisjoint({e.part for e in new.parts()})
    check_rows(job.table(2), texts, embedder)
    assert job.table(1).equals(first)
    check_sound(job)
    again = job.run()
    assert again.out == "nothing to do: version 2 holds all 80 rows of this corpus\n"


def test_a_change_of_the_settings_embeds_everything_again(job: Job, texts: dict[Any, str]) -> None:
    result = job.run("--set", "model.prompt_text='find '")
    assert result.code == 0, result.err
    assert "0 kept from version 1, " in result.err
    assert job.versions() == [1, 2]
    old, new = vectors_by_id(job.table(1)), vectors_by_id(job.table(2))
    assert old.keys() == new.keys()
    assert all(abs(old[id] - new[id]).max() > 1e-3 for id in old)
    back = job.run()
    assert back.code == 0, back.err
    assert ", 4 done by a broken run, 0 to embed" in back.err
    assert vectors_by_id(job.table(3)).keys() == old.keys()


def test_two_runs_at_once_make_one_version(
    job: Job, texts: dict[Any, str], embedder: Embedder
) -> None:
    replace_file(job, texts, "b", range(200, 260), length=8)
    runs = [prepare(job.config()), prepare(job.config())]
    working = [execute(run) for run in runs]
    first = [next(each) for each in working]
    assert [payload.failure for payload in first] == [None, None]
    rest = [list(each) for each in working]
    assert [len(payloads) for payloads in rest] == [2, 2]
    assert commit(runs[0]).version == 2
    with pytest.raises(RayvecError, match="another run committed version 2 first") as conflict:
        commit(runs[1])
    assert conflict.value.exit_code == 1
    assert job.versions() == [1, 2]
    check_rows(job.table(), texts, embedder)
    check_sound(job)
    assert job.run().out.startswith("nothing to do: version 2 holds all 120 rows")


@pytest.mark.slow
def test_two_processes_at_once_make_one_version(
    job: Job, texts: dict[Any, str], embedder: Embedder
) -> None:
    replace_file(job, texts, "b", range(200, 400), length=8)
    results = [finish(process) for process in [job.start(), job.start()]]
    codes = sorted(result.code for result in results)
    assert codes in ([0, 0], [0, 1]), results
    for result in results:
        if result.code == 1:
            assert "another run committed version 2 first" in result.error
    assert job.versions() == [1, 2]
    check_rows(job.table(), texts, embedder)
    check_sound(job)
    assert job.run().out.startswith("nothing to do: version 2 holds all 260 rows")
