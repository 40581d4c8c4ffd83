"""`rayvec embed`: texts in, vectors out."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, get_args

from arch.checkpoint import POOL_MODES
from drivers import gpus_of, open_driver
from pipeline.commands.arguments import Subparsers, add_model
from pipeline.embedder import DTYPES, Embedder
from pipeline.errors import TextError, UsageError
from pipeline.text_input import InputFormat, read_blocks
from pipeline.vector_output import OutputFormat, open_writer, output_format

BLOCK_ROWS = 4096


def add_parsers(commands: Subparsers) -> None:
    """Add `embed`."""
    parser = commands.add_parser("embed", help="embed lines or JSON lines")
    parser.set_defaults(command=embed)
    add_model(parser, required=True)
    parser.add_argument("--input", default="-", help="file of texts; - is standard input")
    parser.add_argument("--output", default="-", help="file of vectors; - is standard output")
    parser.add_argument(
        "--input-format", choices=get_args(InputFormat), help="else by the file's ending"
    )
    parser.add_argument(
        "--format", choices=get_args(OutputFormat), help="else by the file's ending"
    )
    parser.add_argument("--text-key", default="text", help="key of a JSON line's text")
    parser.add_argument("--id-key", default="id", help="key of a JSON line's id")
    parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES])
    parser.add_argument("--threads", type=int, help="else one a core, or one for a GPU")
    parser.add_argument("--prompt", help="name of one of the folder's prompts")
    parser.add_argument("--prompt-text", help="a literal prompt")
    parser.add_argument("--pooling", choices=list(POOL_MODES), help="instead of the folder's")
    parser.add_argument(
        "--normalize", action=argparse.BooleanOptionalAction, help="instead of the folder's"
    )
    parser.add_argument("--dim", type=int, help="cut vectors to their first values")


def embed(args: argparse.Namespace) -> None:
    """Embed a stream of texts block by block."""
    file_format = output_format(args.output, args.format)
    if args.driver == "null":
        raise UsageError("driver 'null' computes no vectors; it serves doctor and tests")
    with _open_embedder(args) as embedder, _open_input(args.input) as stream:
        rows = tokens = truncated = 0
        started = time.perf_counter()
        with open_writer(args.output, file_format, embedder.dim) as writer:
            for block in read_blocks(
                stream,
                args.input,
                args.input_format or _input_format(args.input),
                text_key=args.text_key,
                id_key=args.id_key,
                block_rows=BLOCK_ROWS,
            ):
                try:
                    done = embedder.embed(block.texts, args.prompt, prompt_text=args.prompt_text)
                except TextError as error:
                    raise TextError(block.first_row + error.row, error.reason) from error
                writer.write(done, block.ids)
                rows += len(done.vectors)
                tokens += int(done.tokens.sum())
                truncated += int(done.truncated.sum())
        seconds = time.perf_counter() - started
        print(
            f"embedded {rows} texts, {tokens} tokens, {truncated} cut at {embedder.max_seq_len}, "
            f"as {file_format} ({rows}, {embedder.dim}) in {seconds:.1f} s: "
            f"{rows / seconds:.0f} texts/s, driver {embedder.driver_name}",
            file=sys.stderr,
        )


def _open_embedder(args: argparse.Namespace) -> Embedder:
    driver, threads = open_driver(args.driver), args.threads
    if threads is None:
        threads = 1 if gpus_of(driver.name) else os.cpu_count() or 1
    return Embedder.open(
        args.model,
        driver=driver,
        dtype=args.dtype,
        threads=threads,
        max_seq_len=args.max_seq_len,
        pooling=args.pooling,
        normalize=args.normalize,
        dim=args.dim,
    )


@contextmanager
def _open_input(name: str) -> Iterator[Iterator[bytes]]:
    """The input's lines; a file that cannot be read is named."""
    if name == "-":
        if sys.stdin is None:
            raise UsageError("input '-': standard input is closed")
        yield _lines(name, sys.stdin.buffer)
        return
    try:
        file = open(name, "rb")  # noqa: SIM115  # closed below, where its failures differ
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error
    with file:
        yield _lines(name, file)


def _lines(name: str, file: BinaryIO) -> Iterator[bytes]:
    try:
        yield from file
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> UsageError:
    return UsageError(f"input '{name}': cannot be read: {getattr(error, 'strerror', error)}")


def _input_format(name: str) -> InputFormat:
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else "lines"
