"""Strings to vectors: rayvec against the other ways to embed on a CPU, alternating in one run.

    python benchmarks/embed.py [--texts FILE.jsonl] [--limit N] [--max-seq-len S] [--threads N]
        [--model FOLDER | package:NAME/FOLDER | random:bge-base] [--peers NAME …]

FILE.jsonl holds objects with a `text`; without it the docstrings of the Python standard library
serve. The peers (peers.py; `pip install -e '.[bench]'`) take part where they are installed. Every
system gets the same strings, limit and threads and gives normalised float32 vectors; a peer runs
with the batch size that a part of the texts showed to be its fastest. Rounds alternate; a rate is
that of the median round, and ratios are of those. Afterwards each system has a process of its own
for its memory and the time to its first vector (process_memory.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from likeness import likeness
from model_folders import MINILM, folder_of
from peers import (
    ONNX_RUNTIME,
    PEERS,
    REFERENCE,
    Encode,
    LeftOut,
    Setup,
    Vectors,
    export_graph,
    fuse_graph,
    system_named,
)
from process_memory import measure
from result_file import write_result
from texts import DOCSTRINGS, read_texts

from arch.checkpoint import read_checkpoint
from drivers import open_driver
from pipeline.tokenizer import Tokenizer

PART = 32  # texts that a batch size is chosen on
CHOICE_SECONDS = 5.0  # after so much time each batch size is tried but once
MEMORY_TEXTS = 32
PACKAGES = ["rayvec", "numpy", "tokenizers", "torch", "sentence-transformers", "transformers"]
PACKAGES += ["onnx", "onnxruntime", "openvino"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--dtypes", nargs="+", help="those of the driver, but for float16")
    parser.add_argument("--max-seq-len", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)  # of every system's tokenizer
    texts = read_texts(args.texts)[: args.limit]
    with tempfile.TemporaryDirectory() as temporary:
        setup = Setup(
            folder_of(args.model, Path(temporary)),
            Path(temporary),
            args.max_seq_len,
            args.threads,
        )
        compare(args, setup, texts)


def compare(args: argparse.Namespace, setup: Setup, texts: list[str]) -> None:
    driver = open_driver(args.driver)
    dtypes = args.dtypes or [str(d) for d in driver.dtypes if d != np.float16]
    ours = [f"rayvec {driver.name} {dtype}" for dtype in dtypes]
    peers = [name for name in args.peers if is_installed(name)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        raced = pool.submit(race, setup, [*ours, *peers], texts, args.rounds).result()
    reference = REFERENCE if REFERENCE in raced else ours[0]
    tokens = count_tokens(setup, texts)
    part = setup.graphs / "part.json"
    part.write_text(json.dumps(texts[:MEMORY_TEXTS]), encoding="utf-8")
    figures: dict[str, dict[str, Any]] = {}
    for name, (batch, seconds, vectors) in raced.items():
        figures[name] = {
            "batch_size": batch,
            **rates(seconds, len(texts), tokens),
            **likeness(vectors, raced[reference].vectors),
            **measure(name, setup, batch, part, second=name in ours),
        }
        print(f"own process  {name:<32} {memory_line(figures[name])}", flush=True)
    for name, row in figures.items():
        print(summary(name, row, {one: figures[one] for one in ours}))
    settings = {
        "texts": DOCSTRINGS if args.texts is None else args.texts.name,
        "num_texts": len(texts),
        "num_tokens": tokens,
        "max_seq_len": setup.max_seq_len,
        "threads": setup.threads,
        "model": args.model,
        "reference": reference,
        "instruction_set": getattr(driver, "instruction_set", None),
        "memory_texts": min(MEMORY_TEXTS, len(texts)),
    }
    print("written:", write_result("embed", settings, figures, PACKAGES))


# ---- what takes part


def is_installed(name: str) -> bool:
    needs = system_named(name).needs
    missing = [module for module in needs if not importlib.util.find_spec(module)]
    if missing:
        print(f"{name} is left out: not installed: {', '.join(missing)}")
    return not missing


def count_tokens(setup: Setup, texts: list[str]) -> int:
    settings = read_checkpoint(setup.folder).tokenizer
    tokenizer = Tokenizer(settings, max_seq_len=setup.max_seq_len, vocab_size=1 << 31)
    return int(tokenizer.encode(texts).lengths.sum())


# ---- the race, in a process of its own: what it maps would halve what its pages count elsewhere


class Raced(NamedTuple):
    """What a system was measured with. seconds: of each round. vectors: (rows, D)."""

    batch: int | None
    seconds: list[float]
    vectors: Vectors


def race(setup: Setup, names: list[str], texts: list[str], rounds: int) -> dict[str, Raced]:
    """Open the systems and let them take turns; without those that cannot take part."""
    if any("onnx" in system_named(name).needs for name in names):
        export_graph(setup)
    if ONNX_RUNTIME in names:
        fuse_graph(setup)
    part = texts[:: max(1, len(texts) // PART)][:PART]
    encoders: dict[str, Encode] = {}
    raced: dict[str, Raced] = {}
    for name in names:
        try:
            encoders[name], batch = open_at_best(name, setup, part)
        except LeftOut as error:
            print(f"{name} is left out: {error}")
            continue
        raced[name] = Raced(batch, [], np.empty(0, np.float32))
    for number in range(rounds):
        for name, encode in encoders.items():
            started = time.perf_counter()
            vectors = encode(texts)
            raced[name].seconds.append(time.perf_counter() - started)
            raced[name] = raced[name]._replace(vectors=vectors)
            rate = len(texts) / raced[name].seconds[-1]
            print(f"round {number + 1}  {name:<32} {rate:8.1f} docs/s", flush=True)
    return raced


def open_at_best(name: str, setup: Setup, part: list[str]) -> tuple[Encode, int | None]:
    """A system's function, warm, with the batch size that was fastest on the part."""
    system = system_named(name)
    with_batch = system.open(setup)
    encoders = {size: with_batch(size) for size in system.batch_sizes or (None,)}
    best = dict.fromkeys(encoders, float("inf"))
    next(iter(encoders.values()))(part[:4])
    began = time.perf_counter()
    for _ in range(2):
        for size, encode in encoders.items():
            started = time.perf_counter()
            encode(part)
            best[size] = min(best[size], time.perf_counter() - started)
        if time.perf_counter() - began > CHOICE_SECONDS:
            break
    tried = ", ".join(f"{size}: {len(part) / took:.0f} docs/s" for size, took in best.items())
    print(f"opened  {name:<32} by batch size {tried}", flush=True)
    chosen = min(best, key=lambda size: best[size])
    return encoders[chosen], chosen


# ---- what the rounds say


def rates(seconds: list[float], num_texts: int, num_tokens: int) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "docs_per_second": num_texts / median,
        "tokens_per_second": num_tokens / median,
        "seconds": seconds,
    }


def memory_line(row: dict[str, Any]) -> str:
    first = ", ".join(f"{s:.2f}" for s in row["first_vector_seconds"])
    line = f"{row['pss_bytes'] / 2**20:7.0f} MiB beyond its imports"
    if "second_pss_bytes" in row:
        line += f", a second one {row['second_pss_bytes'] / 2**20:.0f} MiB"
    return f"{line}; first vector after {first} s"


def summary(name: str, row: dict[str, Any], ours: dict[str, dict[str, Any]]) -> str:
    rate = row["docs_per_second"]
    ratios = [f"{one} is {mine['docs_per_second'] / rate:.2f}x" for one, mine in ours.items()]
    return (
        f"{name:<32} {rate:8.1f} docs/s {row['tokens_per_second']:9.0f} tokens/s  "
        f"{'; '.join(ratios)}  cosine mean {row['cosine_mean']:.7f} min {row['cosine_min']:.7f}  "
        f"largest difference {row['largest_difference']:.1e}"
    )


if __name__ == "__main__":
    main()
