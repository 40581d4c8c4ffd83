"""Commands on a committed index: status, verify, files, versions and search."""

from __future__ import annotations

import argparse
from typing import get_args

from pipeline.commands.arguments import Subparsers, add_store, add_version
from pipeline.errors import RayvecError
from pipeline.index import Index, Metric
from pipeline.manifest import current_version
from pipeline.query import QueryEmbedder
from pipeline.sink import count_receipts
from pipeline.store import Store


def add_parsers(commands: Subparsers) -> None:
    """Add the commands that read an index."""
    parser = commands.add_parser("status", help="what an index holds, and what is half done")
    parser.set_defaults(command=status)
    add_store(parser)

    parser = commands.add_parser("verify", help="read and check every part of a version")
    parser.set_defaults(command=verify)
    add_store(parser)
    add_version(parser)

    parser = commands.add_parser("files", help="list a version's Parquet files")
    parser.set_defaults(command=files)
    add_store(parser)
    add_version(parser)

    parser = commands.add_parser("versions", help="list the versions of an index")
    parser.set_defaults(command=versions)
    add_store(parser)

    parser = commands.add_parser("search", help="the rows nearest to a text, by exact search")
    parser.set_defaults(command=search)
    add_store(parser)
    add_version(parser)
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("-k", type=int, default=10, help="rows to show")
    parser.add_argument("--metric", choices=get_args(Metric), default="cosine")
    parser.add_argument("--model", help="where the index's model is now, if it has moved")
    parser.add_argument("--prompt", help="name of one of the model's prompts, for the query")
    parser.add_argument("--prompt-text", help="a literal prompt for the query")


def status(args: argparse.Namespace) -> None:
    """`rayvec status`: the newest version, and shards done but not committed."""
    store = Store.open(args.uri, endpoint=args.endpoint, region=args.region)
    head = current_version(store)
    if head is None:
        print(f"{store.uri}: no version committed yet")
    else:
        print(
            f"version {head.version} of {head.created}: {head.rows:,} rows of {head.dim} "
            f"{head.vector_type} values in {head.parts} parts, {head.tokens:,} tokens, "
            f"{head.dead_letters} dead letters"
        )
        for name, value in head.summary.items():
            if value is not None:
                print(f"  {name:<16} {value}")
        for key, letter in Index(store, head).dead_letters():
            print(f"  dead letter      {letter.where} (id {letter.id}): {letter.reason} [{key}]")
    committed = {entry.shard_key for entry in Index(store, head).parts()} if head else set()
    for (epoch, fingerprint), keys in count_receipts(store).items():
        waiting = len(keys - committed) if head and head.fingerprint == fingerprint else len(keys)
        if waiting and (head is None or head.epoch <= epoch):
            print(f"{waiting} shards done and not in a version (fingerprint {fingerprint[:12]})")


def verify(args: argparse.Namespace) -> None:
    """`rayvec verify`: raises RayvecError where anything is wrong."""
    report = _open(args).verify()
    for problem in report.problems:
        print(problem)
    print(
        f"version {report.version}: {report.parts} parts, {report.rows:,} rows read, "
        f"{report.duplicate_ids} duplicate ids; {report.orphan_parts} orphan parts of "
        f"{report.orphan_bytes:,} bytes"
    )
    if not report.ok:
        raise RayvecError(f"{args.uri}: version {report.version} is damaged")


def files(args: argparse.Namespace) -> None:
    """`rayvec files`: one uri a line, for DuckDB, Polars and the like."""
    for uri in _open(args).files():
        print(uri)


def versions(args: argparse.Namespace) -> None:
    """`rayvec versions`: one line a version, oldest first."""
    index = Index.open(args.uri, endpoint=args.endpoint, region=args.region)
    for head in index.versions():
        print(
            f"{head.version:>8}  {head.created}  {head.rows:>12,} rows  {head.parts:>6} parts  "
            f"{head.dead_letters:>6} dead letters  {head.fingerprint[:12]}"
        )


def search(args: argparse.Namespace) -> None:
    """`rayvec search`: score, id and kept columns of the nearest rows."""
    index = _open(args)
    with QueryEmbedder.open(index, model=args.model) as embedder:
        vector = embedder.encode(args.text, prompt=args.prompt, prompt_text=args.prompt_text)
    for hit in index.search(vector, args.k, metric=args.metric):
        row = {k: v for k, v in hit.row.items() if k not in ("id", "content_hash")}
        rest = "  ".join(f"{name}={value}" for name, value in row.items() if value is not None)
        print(f"{hit.score:8.4f}  {hit.row['id']}  {rest}")


def _open(args: argparse.Namespace) -> Index:
    return Index.open(args.uri, args.version, endpoint=args.endpoint, region=args.region)
