"""Configs of small runs over tiny models, and a run whose stages follow each other without Ray."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
from typing import get_type_hints

from source_corpus import write_jsonl

from pipeline.actor import EmbedActor
from pipeline.config import RunConfig
from pipeline.index import Index
from pipeline.run import commit, execute, prepare
from pipeline.shard_work import Payload, ShardReader
from tests.models.folders import TinyBert, build

GOOD = [{"id": i, "text": text} for i, text in enumerate(["hello world", "the cat", "a river"])]


def run_config(place, rows=None, **sections):
    """A config of rows.jsonl, a tiny model and an index, all in `place`; keys by section go over.

    rows: written to rows.jsonl, which is left as it is without them.
    """
    model, file = place / "model", place / "rows.jsonl"
    if not model.exists():
        build(model, TinyBert())
    if rows is not None:
        write_jsonl(file, rows)
    keys = {
        "model": {"path": str(model)},
        "source": {"format": "jsonl", "uri": (str(file),)},
        "sink": {"uri": str(place / "index")},
        "workers": {"driver": "numpy"},
    }
    keys |= {name: keys.get(name, {}) | changed for name, changed in sections.items()}
    types = get_type_hints(RunConfig)
    return RunConfig(**{name: types[name](**values) for name, values in keys.items()})


CORPUS = [{"id": i, "text": f"the cat is {i}"} for i in range(23)]


def stand_in_for_ray(monkeypatch):
    """Have `pipeline.job` do one shard after the other in this process; the keys of those done."""
    done = []

    def run_shards(plan, tasks, writer, workers):
        assert workers == 1
        reader, actor = ShardReader(plan.config), EmbedActor(plan)
        for task in tasks:
            written = writer(Payload.from_row(actor(reader(task).to_row())))
            done.append(task.work_key)
            yield written

    job = types.ModuleType("pipeline.job")
    job.cluster = contextlib.nullcontext
    job.worker_count = lambda config, num_shards, gpus_per_worker: 1
    job.run_shards = run_shards
    monkeypatch.setitem(sys.modules, "pipeline.job", job)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return done


def small_shards(place, rows=CORPUS, **sections):
    """A config of shards of five rows."""
    sections["source"] = {"rows_per_shard": 5} | sections.get("source", {})
    return run_config(place, rows, **sections)


def run_whole(config):
    """Prepare, execute and commit; the version."""
    prepared = prepare(config)
    for _ in execute(prepared):
        pass
    return commit(prepared)


def do_shards(config, count):
    """Execute until `count` shards are written, then break off; their keys."""
    with contextlib.closing(execute(prepare(config))) as steps:
        return {next(steps).work_key for _ in range(count)}


def column_of(config, name):
    batches = Index.open(config.sink.uri).to_batches([name])
    return [value for batch in batches for value in batch.column(name).to_pylist()]


def files(place, names):
    """A folder with a file of four rows for each name, beside those it has."""
    corpus = place / "corpus"
    corpus.mkdir(exist_ok=True)
    for name in names:
        rows = [{"id": f"{name}{i}", "text": f"the cat {i}"} for i in range(4)]
        write_jsonl(corpus / f"{name}.jsonl", rows)
    return str(corpus)


def file_of(config):
    """The config as a YAML file; JSON is YAML too."""
    path = config.sink.uri + ".yaml"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config.to_dict(), file)
    return path
