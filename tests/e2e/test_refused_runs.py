"""What the user can mend is said in one line, exit 2, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.runs import Job, call, rows, write_lines


@pytest.fixture
def ready(job: Job) -> Job:
    """A job that would run."""
    write_lines(job.corpus / "a.jsonl", rows(range(10)))
    return job


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below `folder`, but for the config."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != "config.yaml"
    }


def misspelt_key(job: Job) -> None:
    job.set("source", rows_per_shards=10)


def misspelt_section(job: Job) -> None:
    job.set("chunkin", max_tokens=10)


def missing_key(job: Job) -> None:
    job.sink = ""
    job.set("sink", uri=None)


def missing_file(job: Job) -> None:
    job.set("source", uri=str(job.corpus / "b.jsonl"))


def missing_folder(job: Job) -> None:
    job.set("source", uri=str(job.folder / "corpse"))


def wrong_column(job: Job) -> None:
    job.set("source", text_column="txt")


def wrong_kept_column(job: Job) -> None:
    job.set("source", keep_columns=["lang"])


def empty_file(job: Job) -> None:
    write_lines(job.corpus / "a.jsonl", [])


def other_format(job: Job) -> None:
    job.set("source", format="parquet", uri=str(job.corpus / "a.jsonl"))


def sink_below_a_file(job: Job) -> None:
    (job.folder / "taken").write_text("mine")
    job.sink = str(job.folder / "taken" / "index")


def sink_is_a_file(job: Job) -> None:
    (job.folder / "taken").write_text("mine")
    job.sink = str(job.folder / "taken")


def sink_is_a_foreign_folder(job: Job) -> None:
    write_lines(Path(job.sink) / "letters.jsonl", rows(range(2)))


def missing_model(job: Job) -> None:
    job.set("model", path=str(job.folder / "no_model"))


def too_many_tokens(job: Job) -> None:
    job.set("model", max_seq_len=1000)


def too_long_chunks(job: Job) -> None:
    job.set("chunking", max_tokens=64)


def no_gpu(job: Job) -> None:
    job.set("workers", driver="cuda")


def too_many_workers(job: Job) -> None:
    job.set("workers", count=99)


def duplicate_ids(job: Job) -> None:
    write_lines(job.corpus / "b.jsonl", rows([20, 7]))


REFUSALS: list[tuple[Callable[[Job], None], list[str]]] = [
    (misspelt_key, ["config.yaml:", "rows_per_shards", "did you mean 'rows_per_shard'"]),
    (misspelt_section, ["config.yaml:", "chunkin", "did you mean 'chunking'"]),
    (missing_key, ["config.yaml:", "sink.uri"]),
    (missing_file, ["source.uri", "b.jsonl"]),
    (missing_folder, ["source.uri", "corpse"]),
    (wrong_column, ["a.jsonl", "'txt'", "did you mean 'text'"]),
    (wrong_kept_column, ["a.jsonl", "'lang'", "'text'"]),
    (empty_file, ["source.uri", "no rows"]),
    (other_format, ["a.jsonl", "not a Parquet file"]),
    (sink_below_a_file, ["taken"]),
    (sink_is_a_file, ["taken"]),
    (sink_is_a_foreign_folder, ["not empty and not an index", "letters.jsonl"]),
    (missing_model, ["no_model"]),
    (too_many_tokens, ["max_seq_len is 1000", "1 to 64"]),
    (too_long_chunks, ["chunking.max_tokens", "leaves 62"]),
    (no_gpu, ["workers.driver: 'cuda' wants a GPU, the Ray cluster has none"]),
    (too_many_workers, ["workers: 99 of", "more than the 2 CPUs"]),
    (duplicate_ids, ["'r7'", "a.jsonl", "b.jsonl", "keep_first"]),
]


@pytest.mark.parametrize(("spoil", "said"), REFUSALS, ids=[case[0].__name__ for case in REFUSALS])
def test_what_the_user_can_mend_is_one_line_and_nothing_is_written(
    ready: Job, spoil: Callable[[Job], None], said: list[str]
) -> None:
    spoil(ready)
    before = tree(ready.folder)
    result = ready.run()
    assert result.code == 2, result
    for word in said:
        assert word in result.error
    assert result.out == ""
    assert tree(ready.folder) == before


def test_an_override_that_no_key_has_is_named(ready: Job) -> None:
    result = ready.run("--set", "model.max_sequence=10")
    assert result.code == 2
    assert "--set model.max_sequence" in result.error
    assert "max_seq_len" in result.error


def test_a_missing_config_is_named(ready: Job) -> None:
    result = call("run", str(ready.folder / "confg.yaml"))
    assert result.code == 2
    assert "confg.yaml" in result.error


def test_a_bucket_that_is_not_there_is_named(ready: Job, s3_endpoint: str) -> None:
    ready.sink, ready.endpoint = "s3://no-such-bucket/index", s3_endpoint
    result = ready.run()
    assert result.code == 2
    assert "no such bucket" in result.error
    assert "s3://no-such-bucket/index" in result.error


def test_wrong_keys_of_the_store_are_named(
    ready: Job, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    ready.sink, ready.endpoint = "s3://vec/refused", s3_endpoint
    result = ready.run()
    assert result.code == 2
    assert "s3://vec/refused" in result.error
    assert "credentials" in result.error
