"""One run, from a config to a committed version. Ray is entered only where there is work to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from os.path import expanduser as expanded
from typing import Any

from drivers import DriverPlan, gpus_of, plan_driver
from pipeline.commit import claim, commit_version
from pipeline.config import RunConfig, fingerprint
from pipeline.embedder import open_configured, resolve_dtype
from pipeline.errors import GuardError, RayvecError, UsageError
from pipeline.manifest import PartEntry, Version, current_version, read_parts
from pipeline.model_identity import ModelIdentity, identify
from pipeline.model_path import resolve_model
from pipeline.plan_cache import IdHashes, load_scans, save_scans
from pipeline.shard_work import Payload, ShardEmbedder, ShardTask, ShardWriter
from pipeline.sink import Receipt, read_receipts
from pipeline.source import Plan, duplicates_error, plan_shards
from pipeline.store import Store, StoreError

SHOWN_FAILURES = 5


@dataclass(frozen=True)
class ModelFacts:
    """What a run needs to know of its model before it starts."""

    driver: DriverPlan
    dtype: str
    identity: ModelIdentity
    dim: int
    max_seq_len: int


@dataclass(frozen=True)
class PreparedRun:
    """A run that may start: everything checked, nothing written.

    kept: shards that the base version has. done: shards with a receipt of an earlier, broken run.
    todo: what is left.
    """

    config: RunConfig
    model: ModelFacts
    store: Store
    plan: Plan
    tasks: tuple[ShardTask, ...]
    fingerprint: str
    epoch: int
    base: Version | None
    kept: Mapping[str, PartEntry]
    done: Mapping[str, Receipt]
    todo: tuple[ShardTask, ...]
    dropped_shards: int
    ids: IdHashes | None

    @property
    def unchanged(self) -> bool:
        """Whether the base version is already what this run would commit."""
        return (
            self.base is not None
            and self.base.fingerprint == self.fingerprint
            and len(self.kept) == len(self.tasks)
            and self.dropped_shards == 0
        )


def prepare(config: RunConfig) -> PreparedRun:
    """Check the model, plan the source and compare it with the index. Writes nothing.

    Raises UsageError, arch.CheckpointError or drivers.DriverError for what the user can mend,
    RayvecError for a damaged index.
    """
    config = located(config)
    model = inspect_model(config)
    mark = fingerprint(
        config,
        model_sha256=model.identity.model_sha256,
        tokenizer_sha256=model.identity.tokenizer_sha256,
        resolved_dtype=model.dtype,
    )
    storage = config.storage
    try:
        store = Store.open(config.sink.uri, endpoint=storage.endpoint, region=storage.region)
        base = current_version(store)
        plan = plan_shards(
            config.source,
            endpoint=storage.endpoint,
            region=storage.region,
            known=load_scans(store, mark),
        )
    except StoreError as error:
        raise UsageError(str(error)) from error
    full = config.run.mode == "full"
    epoch = 0 if base is None else base.epoch + full
    reusable = base is not None and base.fingerprint == mark and not full
    before = {e.shard_key: e for e in read_parts(store, base)} if base and reusable else {}
    tasks, ids = _tasks(config, store, plan, before)
    keys = {task.work_key for task in tasks}
    kept = {key: entry for key, entry in before.items() if key in keys}
    done = read_receipts(store, epoch, mark, shard_keys=keys - kept.keys())
    return PreparedRun(
        config=config,
        model=model,
        store=store,
        plan=plan,
        tasks=tasks,
        fingerprint=mark,
        epoch=epoch,
        base=base,
        kept=kept,
        done=done,
        todo=tuple(t for t in tasks if t.work_key not in kept and t.work_key not in done),
        dropped_shards=len(before) - len(kept),
        ids=ids,
    )


def located(config: RunConfig) -> RunConfig:
    """The config with its local places as absolute paths: a worker has a folder of its own."""
    sink, model = config.sink.uri, config.model.path
    if "://" not in sink:
        config = replace(config, sink=replace(config.sink, uri=os.path.abspath(expanded(sink))))
    if os.path.isdir(expanded(model)):
        config = replace(config, model=replace(config.model, path=os.path.abspath(expanded(model))))
    return config


def execute(run: PreparedRun) -> Iterator[Payload]:
    """Claim the place, then do what is left; yields each shard when it is written or has failed.

    Raises UsageError where the place cannot be written, or the cluster cannot hold the workers,
    GuardError where too many rows are bad. What is done stays for the next run.
    """
    if run.model.driver.name == "null":
        raise UsageError("workers.driver: 'null' computes no vectors; it serves `rayvec plan`")
    if not run.todo:
        _claim(run)
        BadRowGuard(run)
        return
    from pipeline.actor import WorkerPlan
    from pipeline.job import cluster, run_shards, worker_count

    writer = ShardWriter(run.config, run.epoch, run.fingerprint)
    worker = WorkerPlan(run.config, run.model.driver, run.model.dtype, run.model.identity)
    failed: list[Payload] = []
    with cluster():
        workers = worker_count(run.config, len(run.todo), gpus_of(run.model.driver.name))
        _claim(run)
        guard = BadRowGuard(run)
        for payload in run_shards(worker, run.todo, writer, workers):
            if payload.failure is None:
                guard.add(payload.letters)
            else:
                failed.append(payload)
            yield payload
    if failed:
        shown = "; ".join(f"{p.work_key}: {p.failure}" for p in failed[:SHOWN_FAILURES])
        raise RayvecError(
            f"run: {len(failed)} of {len(run.todo)} shards failed, the others are kept for the "
            f"next run: {shown}"
        )


def _claim(run: PreparedRun) -> None:
    """Mark the place as this index's, and keep what the plan found out."""
    schema = run.plan.shards[0].schema
    try:
        claim(
            run.store,
            {
                "dim": run.model.dim,
                "vector_type": run.config.sink.vector_type,
                "id_type": str(schema.field("id").type),
            },
        )
        save_scans(run.store, run.fingerprint, run.plan.scans)
        if run.ids is not None:
            run.ids.save()
    except StoreError as error:
        raise UsageError(f"sink.uri: cannot be written: {error}") from error


def commit(run: PreparedRun) -> Version:
    """Commit the next version from kept parts and receipts, which must cover the plan."""
    keys = [task.work_key for task in run.tasks]
    receipts = read_receipts(
        run.store, run.epoch, run.fingerprint, shard_keys=set(keys) - run.kept.keys()
    )
    return commit_version(
        run.store,
        plan_keys=keys,
        receipts=receipts,
        kept=run.kept,
        epoch=run.epoch,
        fingerprint=run.fingerprint,
        summary=summary(run),
        base_version=0 if run.base is None else run.base.version,
        unread=run.done.keys(),
    )


def summary(run: PreparedRun) -> dict[str, object]:
    """What a head says of its run: enough to embed a query as the corpus was embedded."""
    model = run.config.model
    return {
        "model": model.path,
        "model_sha256": run.model.identity.model_sha256,
        "tokenizer_sha256": run.model.identity.tokenizer_sha256,
        "dtype": run.model.dtype,
        "driver": run.model.driver.name,
        "max_seq_len": run.model.max_seq_len,
        "pooling": model.pooling,
        "normalize": model.normalize,
        "dim": model.dim,
        "prompt": model.prompt,
        "prompt_text": model.prompt_text,
        "source_format": run.config.source.format,
        "source_uri": list(run.config.source.uri),
    }


def inspect_model(config: RunConfig) -> ModelFacts:
    """Open the model for shapes alone and check the settings that depend on it.

    Raises UsageError, arch.CheckpointError or drivers.DriverError.
    """
    driver = plan_driver(config.workers.driver)
    dtype = str(resolve_dtype(config.model.dtype, driver, resolve_model(config.model.path)))
    with open_configured(config, driver="null", dtype=dtype) as embedder:
        prompt = ShardEmbedder(config, embedder).prompt
        room = embedder.content_tokens(prompt)
        asked = config.chunking.max_tokens
        if room < 1 or (asked is not None and asked > room):
            raise UsageError(
                f"chunking.max_tokens: {asked} tokens a chunk, but the limit of "
                f"{embedder.max_seq_len} leaves {room} beside special tokens and prompt"
                if asked is not None
                else f"model.prompt: leaves no room in {embedder.max_seq_len} tokens"
            )
        return ModelFacts(
            driver=driver,
            dtype=dtype,
            identity=identify(embedder.model.checkpoint),
            dim=embedder.dim,
            max_seq_len=embedder.max_seq_len,
        )


class BadRowGuard:
    """Stops a run as soon as its bad rows are more than the config allows."""

    def __init__(self, run: PreparedRun) -> None:
        self._policy = run.config.failure
        self._planned = run.plan.num_rows
        self._bad = sum(entry.dead_letters for entry in run.kept.values())
        for receipt in run.done.values():
            self.add(receipt.dead_letters)

    def add(self, letters: Any) -> None:
        """Count a shard's dead letters. Raises GuardError where the limit is passed."""
        self._bad += len(letters)
        if letters and self._policy.bad_rows == "fail":
            first = letters[0]
            raise GuardError(
                f"failure.bad_rows is 'fail': {first.where} (id {first.id!r}): {first.reason}; "
                "what is done is kept for the next run"
            )
        allowed = self._policy.max_bad_fraction
        if self._bad / self._planned > allowed:
            first = f"; the latest: {letters[-1].where}: {letters[-1].reason}" if letters else ""
            raise GuardError(
                f"failure.max_bad_fraction: {self._bad} of {self._planned} rows are bad, more than "
                f"{allowed:.2%}{first}; what is done is kept for the next run"
            )


def _tasks(
    config: RunConfig, store: Store, plan: Plan, before: Mapping[str, PartEntry]
) -> tuple[tuple[ShardTask, ...], IdHashes | None]:
    """A task a shard, without rows whose id came before; the hashes to keep, where any were made.

    Raises UsageError naming duplicate ids where the policy is to fail.
    """
    policy = config.source.duplicates
    if policy == "fail" and all(shard.key in before for shard in plan.shards):
        return tuple(ShardTask.of(shard, (), policy) for shard in plan.shards), None
    ids = IdHashes(store, config)
    duplicates = ids.duplicates(plan.shards)
    if duplicates and policy == "fail":
        raise duplicates_error(duplicates, plan)
    by_shard = {key: list(group) for key, group in groupby(duplicates, key=lambda d: d.shard)}
    tasks = tuple(ShardTask.of(s, by_shard.get(s.key, ()), policy) for s in plan.shards)
    return tasks, ids
