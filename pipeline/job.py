"""The Ray Data graph: shards are read, embedded and written by three pools of actors.

One row of the dataset is one shard, whole, in every stage (`pipeline.shard_work.Payload`): Ray can
neither split it nor put it into another order within itself, and no bad row is ever an exception.
The stages overlap: each pool works on its own shards while the next one works on those before.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.util.annotations import RayDeprecationWarning

from drivers import gpus_of
from pipeline.actor import EmbedActor, ReadActor, WorkerPlan, WriteActor
from pipeline.config import RunConfig
from pipeline.errors import RayvecError, UsageError
from pipeline.shard_work import Payload, ShardTask, ShardWriter

READ_CPUS = 0.25
WRITE_CPUS = 0.2
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # what matters of it comes as an exception too
}
EXCEPTION_LINE = re.compile(r"[A-Za-z_][\w.]*: \S")
WORKERS_PER_HELPER = 8
CONNECT_SECONDS = 10.0
SHARDS_AHEAD = 2  # shards that wait at an actor, so that it never waits for a read


@contextmanager
def cluster() -> Iterator[None]:
    """A Ray cluster to run on: the one RAY_ADDRESS or `ray job submit` names, else one of our own.

    An own cluster ends with the block; a connection that was there before stays. Raises
    RayvecError where the cluster cannot be reached or started.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address:
        _require_listener(address)
    options: dict[str, Any] = {} if address else {"address": "local", "include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        where = f"the Ray cluster at {address}" if address else "a Ray cluster of its own"
        raise RayvecError(f"run: cannot reach {where}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def worker_count(config: RunConfig, num_shards: int, gpus_per_worker: int = 0) -> int:
    """Embedding actors to start: what the config says, else one a core as far as the CPUs reach.

    gpus_per_worker: GPUs of an actor; where it has any, one a GPU is wanted. Raises UsageError
    where the cluster cannot hold them beside the reading and writing.
    """
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    cpus = float(resources.get("CPU", 0))
    each, asked = config.workers.cpus_per_worker, config.workers.count
    counts = range(1, max(1, int(cpus)) + 1)
    fitting = max((n for n in counts if cpus_of(n, each) <= cpus), default=1)
    if gpus_per_worker:
        gpus = int(resources.get("GPU", 0)) // gpus_per_worker
        if gpus < 1 or (asked != "auto" and asked > gpus):
            wish = "a GPU" if asked in ("auto", 1) else f"{asked} GPUs"
            raise UsageError(
                f"workers.driver: '{config.workers.driver}' wants {wish}, the Ray cluster has "
                f"{gpus or 'none'}"
            )
        fitting = min(fitting, gpus)
    wanted = fitting if asked == "auto" else asked
    if cpus_of(wanted, each) > cpus:
        raise UsageError(
            f"workers: {wanted} of {each} CPUs each take {cpus_of(wanted, each):g} CPUs with "
            f"reading and writing, more than the {cpus:g} CPUs of the cluster"
        )
    return min(wanted, num_shards)


def cpus_of(workers: int, cpus_per_worker: float) -> float:
    """CPUs that a run reserves with so many embedding actors."""
    helpers = helpers_of(workers)
    return round(workers * cpus_per_worker + helpers * (READ_CPUS + WRITE_CPUS), 6)


def helpers_of(workers: int) -> int:
    """Reading actors, and writing ones, beside so many embedding ones: one for each eight."""
    return 1 + (workers - 1) // WORKERS_PER_HELPER


def dataset(
    plan: WorkerPlan, tasks: Sequence[ShardTask], writer: ShardWriter, workers: int
) -> Dataset:
    """The graph from tasks to written shards; nothing runs before it is consumed."""
    context = DataContext.get_current()
    context.target_max_block_size = None  # a shard is never cut, however large
    context.enable_progress_bars = False
    items = [{"task": task.to_json()} for task in tasks]
    rows: Dataset = ray.data.from_items(items, override_num_blocks=len(items))
    helpers = helpers_of(workers)
    each = plan.config.workers.cpus_per_worker
    stages: list[tuple[type, Any, int, float, int]] = [
        (ReadActor, plan.config, helpers, READ_CPUS, 0),
        (EmbedActor, plan, workers, each, gpus_of(plan.driver.name)),
        (WriteActor, writer, helpers, WRITE_CPUS, 0),
    ]
    for actor, argument, size, cpus, gpus in stages:
        with warnings.catch_warnings():  # Ray deprecates the only way to bound retries
            warnings.simplefilter("ignore", RayDeprecationWarning)
            rows = rows.map(
                actor,
                fn_constructor_args=(argument,),
                compute=ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=SHARDS_AHEAD),
                num_cpus=cpus,
                num_gpus=gpus or None,
                max_task_retries=plan.config.failure.max_shard_retries,
            )
    return rows


def run_shards(
    plan: WorkerPlan, tasks: Sequence[ShardTask], writer: ShardWriter, workers: int
) -> Iterator[Payload]:
    """Do the shards, and yield each when it is written or has failed, in any order.

    Raises RayvecError where Ray itself gives up: a worker that cannot start, or that keeps dying.
    """
    try:
        for row in dataset(plan, tasks, writer, workers).iter_rows():
            yield Payload.from_row(row)
        return
    except ray.exceptions.RayError as error:
        cause = _cause(error)
    # Outside the handler: the Ray error's traceback would keep the graph and its actors alive.
    raise RayvecError(f"run: {cause}")


def _require_listener(address: str) -> None:
    """Refuse a host and port where nothing listens: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto` and the like: Ray knows where to look
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise RayvecError(f"run: nothing answers at RAY_ADDRESS={address}: {error}") from error


def _cause(error: Exception) -> str:
    """The innermost cause of a Ray error: the last line of its text that names an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if EXCEPTION_LINE.match(line)]
    return named[-1] if named else (lines[0] if lines else type(error).__name__)
