"""Workers on GPUs: how many there are, and what each asks Ray for. Nothing runs on one here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import ray

from pipeline.actor import WorkerPlan
from pipeline.config import RunConfig
from pipeline.errors import UsageError
from pipeline.job import dataset, worker_count
from pipeline.run import prepare
from pipeline.shard_work import ShardWriter
from tests.e2e.runs import Job, rows, write_lines


@pytest.fixture
def ready(job: Job) -> Job:
    """A job on CUDA that could be planned."""
    write_lines(job.corpus / "a.jsonl", rows(range(10)))
    job.set("workers", driver="cuda")
    return job


def with_count(config: RunConfig, count: Any) -> RunConfig:
    return replace(config, workers=replace(config.workers, count=count))


@pytest.mark.parametrize(
    ("resources", "count", "wanted"),
    [
        ({"CPU": 16.0, "GPU": 2.0}, "auto", 2),
        ({"CPU": 16.0, "GPU": 2.0}, 1, 1),
        ({"CPU": 2.0, "GPU": 8.0}, "auto", 2),  # CPUs for two beside reading and writing
        ({"CPU": 16.0, "GPU": 8.0}, "auto", 3),  # no more than shards
    ],
)
def test_a_worker_a_gpu_as_far_as_cpus_and_shards_reach(
    ready: Job,
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, float],
    count: Any,
    wanted: int,
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    assert worker_count(with_count(ready.config(), count), 3, 1) == wanted


@pytest.mark.parametrize(
    ("resources", "count", "said"),
    [
        ({"CPU": 16.0}, "auto", "'cuda' wants a GPU, the Ray cluster has none"),
        ({"CPU": 16.0}, 3, "'cuda' wants 3 GPUs, the Ray cluster has none"),
        ({"CPU": 16.0, "GPU": 2.0}, 3, "'cuda' wants 3 GPUs, the Ray cluster has 2"),
    ],
)
def test_more_workers_than_gpus_are_refused(
    ready: Job,
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, float],
    count: Any,
    said: str,
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    with pytest.raises(UsageError, match=f"workers.driver: {said}"):
        worker_count(with_count(ready.config(), count), 3, 1)


@pytest.mark.parametrize(("driver", "gpus"), [("cuda", 1), ("numpy", None)])
def test_an_embedding_worker_asks_for_a_gpu_and_no_other_does(
    ready: Job, driver: str, gpus: int | None
) -> None:
    ready.set("workers", driver=driver)
    run = prepare(ready.config())
    worker = WorkerPlan(run.config, run.model.driver, run.model.dtype, run.model.identity)
    graph = dataset(worker, run.todo, ShardWriter(run.config, 0, run.fingerprint), workers=1)
    asked = {}
    operator = graph._logical_plan.dag
    while operator.input_dependencies:
        asked[operator.name] = operator.ray_remote_args.get("num_gpus")
        operator = operator.input_dependencies[0]
    assert asked == {"Map(WriteActor)": None, "Map(EmbedActor)": gpus, "Map(ReadActor)": None}
