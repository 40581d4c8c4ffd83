"""`rayvec run` and `rayvec plan`: a config in, a committed index out."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from drivers import DriverError
from pipeline.commands.arguments import Subparsers
from pipeline.config import RunConfig, load_config
from pipeline.embedder import open_configured
from pipeline.report import RunReport, duration
from pipeline.run import PreparedRun, commit, execute, prepare
from pipeline.shard_work import ShardEmbedder
from pipeline.source import read_shard

SAMPLE_SHARDS = 8
SAMPLE_ROWS = 64


def add_parsers(commands: Subparsers) -> None:
    """Add `run` and `plan`."""
    for name, call, text in (
        ("run", run, "embed a corpus and commit the index"),
        ("plan", plan, "show what a run would do, and write nothing"),
    ):
        parser = commands.add_parser(name, help=text)
        parser.set_defaults(command=call)
        parser.add_argument("config", metavar="CONFIG", help="YAML file")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            dest="overrides",
            metavar="SECTION.KEY=VALUE",
            help="overrule a key of the file; may be given again",
        )


def run(args: argparse.Namespace) -> None:
    """`rayvec run`: do what is left of a corpus, then commit."""
    config = load_config(args.config, args.overrides)
    prepared = prepare(config)
    report = RunReport(prepared)
    print(_limit_line(config) + report.plan_line(), file=sys.stderr)
    if prepared.unchanged and prepared.base is not None:
        print(
            f"nothing to do: version {prepared.base.version} holds all "
            f"{prepared.base.rows:,} rows of this corpus"
        )
        return
    with report.following():
        for payload in execute(prepared):
            report.add(payload)
    for line in report.done_lines(commit(prepared)):
        print(line)


def plan(args: argparse.Namespace) -> None:
    """`rayvec plan`: shards and rows by what would become of them, tokens and time by a sample."""
    config = load_config(args.config, args.overrides)
    prepared = prepare(config)
    print(_limit_line(config) + RunReport(prepared).plan_line())
    for task in prepared.tasks:
        state = "keep"
        if task.work_key not in prepared.kept:
            state = "done" if task.work_key in prepared.done else "embed"
        first, *rest = task.shard.pieces
        more = f" and {len(rest)} more files" if rest else ""
        print(f"  {state:<6} {task.work_key}  {task.shard.rows:>8,} rows  {first.name}{more}")
    if prepared.todo:
        print(_estimate(prepared))


def _estimate(prepared: PreparedRun) -> str:
    """Tokens and time of what is left, from a sample of its texts embedded here on one thread."""
    config, storage = prepared.config, prepared.config.storage
    todo = prepared.todo
    step = max(1, len(todo) // SAMPLE_SHARDS)
    texts: list[Any] = []
    for task in todo[::step][:SAMPLE_SHARDS]:
        table = read_shard(
            task.shard, config.source, endpoint=storage.endpoint, region=storage.region
        ).table
        every = max(1, table.num_rows // SAMPLE_ROWS)
        texts += table["text"].to_pylist()[::every][:SAMPLE_ROWS]
    if not texts:
        return "no rows to sample"
    try:
        driver = prepared.model.driver.new_for_clone()
    except DriverError as error:
        return f"no estimate: {error}"
    with open_configured(config, driver=driver, dtype=prepared.model.dtype) as embedder:
        embedder.encode_tokens(embedder.tokenize_each(texts[:1], "").encodings)
        started = time.monotonic()
        tokenized = embedder.tokenize_each(texts, ShardEmbedder(config, embedder).prompt)
        embedder.encode_tokens(tokenized.encodings)
        seconds = time.monotonic() - started
    if not tokenized.encodings:
        return f"none of {len(texts)} sampled texts can be embedded"
    rows = sum(task.shard.rows for task in todo)
    tokens = int(tokenized.lengths.mean() * rows)
    return (
        f"about {tokens:,} tokens in {rows:,} rows to embed; about "
        f"{duration(seconds / len(texts) * rows)} on one such worker, by {len(texts)} sampled texts"
    )


def _limit_line(config: RunConfig) -> str:
    limit = config.source.limit
    return "" if limit is None else f"source.limit: only the first {limit:,} rows; "
