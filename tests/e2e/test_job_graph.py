"""The Ray Data graph: stages of their own, and one block a shard however large it is."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.actor import WorkerPlan
from pipeline.job import dataset
from pipeline.run import commit, prepare
from pipeline.shard_work import Payload, ShardWriter
from tests.e2e.runs import Job, rows, write_lines

LARGE_ROWS = 12_000
BODY_BYTES = 12_000


def run_graph(job: Job) -> tuple[list[Payload], list[str]]:
    """What the graph of a job gives, shard by shard, and the names of its operators."""
    run = prepare(job.config())
    worker = WorkerPlan(run.config, run.model.driver, run.model.dtype, run.model.identity)
    writer = ShardWriter(run.config, run.epoch, run.fingerprint)
    graph = dataset(worker, run.todo, writer, workers=1)
    payloads = [Payload.from_row(row) for row in graph.iter_rows()]
    commit(run)
    return payloads, re.findall(r"Operator \d+ (.+?): \d+ tasks", graph.stats())


def test_reading_embedding_and_writing_are_stages_of_their_own(job: Job) -> None:
    for file in range(3):
        write_lines(job.corpus / f"{file}.jsonl", rows(range(file * 40, file * 40 + 40)))
    job.set("source", rows_per_shard=20)
    payloads, operators = run_graph(job)
    assert operators[-3:] == ["Map(ReadActor)", "Map(EmbedActor)", "Map(WriteActor)"]
    assert [p.failure for p in payloads] == [None] * 6
    assert [p.rows for p in payloads] == [20] * 6
    assert {p.work_key for p in payloads} == job.receipts()


def test_a_shard_above_rays_block_size_stays_one_part(job: Job) -> None:
    body = pa.array(f"{n % 7}" * BODY_BYTES for n in range(LARGE_ROWS))
    table = pa.table(
        {
            "id": pa.array(range(LARGE_ROWS)),
            "text": pa.array(f"{n % 100} river" for n in range(LARGE_ROWS)),
            "body": body,
        }
    )
    assert body.nbytes > 128 << 20  # ray cuts blocks there unless it is told not to
    pq.write_table(table, job.corpus / "large.parquet")
    job.set("source", format="parquet", keep_columns=["body"])
    payloads, _ = run_graph(job)
    assert [(p.failure, p.rows) for p in payloads] == [(None, LARGE_ROWS)]
    index = job.index()
    assert (index.version.parts, index.num_rows) == (1, LARGE_ROWS)
    found = job.table()
    assert found["id"].to_pylist() == list(range(LARGE_ROWS))
    assert found["body"].combine_chunks().equals(body)


@pytest.mark.parametrize("workers", [3, "auto"])
def test_more_workers_than_the_cluster_holds_are_refused(job: Job, workers: int | str) -> None:
    write_lines(job.corpus / "a.jsonl", rows(range(3)))
    job.set("workers", count=workers, cpus_per_worker=0.75 if workers == 3 else 1.9)
    result = job.run()
    assert result.code == 2
    assert "of the cluster" in result.error
    assert job.versions() == []
