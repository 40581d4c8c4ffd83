"""Full-size models of random weights: memory as they load and run, seconds for 1,024 tokens.

    python benchmarks/models.py [--models NAME …] [--rounds 3] [--folder FOLDER]

The folders are written without torch into FOLDER or a temporary one. Each system loads them in a
process of its own, with one thread; transformers takes part where torch is installed, in float32.
Rounds alternate. Seconds are of CPU time, which on one thread is the time it takes where nobody is
at work beside it; those of the clock are in the result file as well. Peaks are the system's own
count (VmHWM), beyond what the process had after its imports.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_folder import FAMILIES, write_folder
from result_file import write_result

import arch
from drivers import Encoding, open_driver

RAYVEC = {"rayvec numpy float32": np.float32, "rayvec numpy float16": np.float16}
PEER = "transformers float32"
SHAPES = {"1 x 1024": (1, 1024), "8 x 128": (8, 128)}
MEMORY = {"peak": "VmHWM", "anonymous": "RssAnon", "mapped": "RssFile"}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PACKAGES = ["rayvec", "numpy", "safetensors", "torch", "transformers"]

Vectors = NDArray[np.float32]
Run = Callable[[NDArray[np.int64]], Vectors]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--worker", nargs=2, metavar=("SYSTEM", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], Path(args.worker[1]))
        return
    systems = [*RAYVEC]
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        systems.append(PEER)
    else:
        print("torch or transformers is not installed: no peer in this run")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.models:
            folder = (args.folder or Path(temporary)) / name
            family = FAMILIES[name]()
            if not folder.exists():
                write_folder(folder, family)
            figures[name] = measure(folder, systems, args.rounds, family.values)
    settings = {"threads": 1, "rounds": args.rounds, "weights": "normal, std 0.02, random"}
    print("written:", write_result("models", settings, figures, PACKAGES))


def measure(folder: Path, systems: list[str], rounds: int, values: int) -> dict[str, Any]:
    """The figures of one model: by system, and how far the vectors lie from the peer's."""
    seconds: dict[str, dict[str, list[float]]] = {s: {k: [] for k in SHAPES} for s in systems}
    clock: dict[str, dict[str, list[float]]] = {s: {k: [] for k in SHAPES} for s in systems}
    vectors: dict[str, dict[str, Vectors]] = {s: {} for s in systems}
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        workers = {s: stack.enter_context(Worker(s, folder)) for s in systems}
        for system, worker in workers.items():
            found[system] = {"load": worker.ask("load")}
        for number in range(rounds):
            for shape in SHAPES:
                for system, worker in workers.items():
                    answer = worker.ask(f"run {shape}")
                    if not number:  # the first run also fills the caches: again
                        answer = worker.ask(f"run {shape}")
                    seconds[system][shape].append(answer["cpu_seconds"])
                    clock[system][shape].append(answer["clock_seconds"])
                    vectors[system][shape] = np.asarray(answer["vectors"], np.float32)
                    found[system].setdefault("run", {})[shape] = answer["memory"]
                    took = f"{answer['cpu_seconds']:6.2f} s"
                    print(f"{folder.name}  round {number + 1}  {shape:<9} {took}  {system}")
    reference = vectors[systems[-1]]
    for system, row in found.items():
        packed = values * (2 if system.endswith("float16") else 4)
        row |= {
            "packed_bytes": packed,
            "load_peak_over_packed": row["load"]["memory"]["peak"] / packed,
            "run_peak_over_packed": max(m["peak"] for m in row["run"].values()) / packed,
            "cpu_seconds": seconds[system],
            "clock_seconds": clock[system],
            "median_cpu_seconds": {k: statistics.median(v) for k, v in seconds[system].items()},
            "largest_difference": max(
                float(np.abs(vectors[system][k] - reference[k]).max()) for k in SHAPES
            ),
        }
        print(
            f"{folder.name}  {system:<22} loaded in {row['load']['cpu_seconds']:.1f} s, peak "
            f"{row['load_peak_over_packed']:.3f}x the weights, running "
            f"{row['run_peak_over_packed']:.3f}x; {row['median_cpu_seconds']}; largest difference "
            f"{row['largest_difference']:.1e}"
        )
    return found


class Worker:
    """A process that holds one system; asked in lines of text, it answers in lines of JSON."""

    def __init__(self, system: str, folder: Path) -> None:
        root = Path(__file__).parent.parent
        path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", system, str(folder)],
            env=os.environ | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, what: str) -> Any:
        """Send a line; the answer. Raises SystemExit where the worker has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended while asked to {what}")
        return json.loads(line)


def work(system: str, folder: Path) -> None:
    """A worker's life: `load` once, then `run ROWS x TOKENS` any number of times."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    prepare = prepare_peer if system == PEER else prepare_rayvec
    load = prepare(folder, system)
    before = resident("VmRSS")
    run: Run | None = None
    for line in sys.stdin:
        reset_peak()
        answer: dict[str, Any] = {}
        started, cpu_started = time.perf_counter(), time.process_time()
        if line.strip() == "load":
            run = load()
        else:
            assert run is not None
            rows, tokens = SHAPES[line.strip().removeprefix("run ")]
            ids = np.random.default_rng(rows).integers(5, 50_000, (rows, tokens))  # (B, S)
            vectors = run(ids)
            unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            answer["vectors"] = unit.tolist()
        answer["cpu_seconds"] = time.process_time() - cpu_started
        answer["clock_seconds"] = time.perf_counter() - started
        answer["memory"] = {name: resident(key) - before for name, key in MEMORY.items()}
        print(json.dumps(answer), file=answers, flush=True)


def prepare_rayvec(folder: Path, system: str) -> Callable[[], Run]:
    driver = open_driver("numpy")

    def load() -> Run:
        model = arch.load(folder, driver, RAYVEC[system])

        def run(ids: NDArray[np.int64]) -> Vectors:
            driver.begin_batch()
            try:
                return model.forward(driver, [Encoding(row.astype(np.int32)) for row in ids])
            finally:
                driver.end_batch()

        return run

    return load


def prepare_peer(folder: Path, system: str) -> Callable[[], Run]:
    """transformers as sentence-transformers pools it: the mean, or the last token if causal."""
    import torch
    from transformers import AutoModel
    from transformers.models.modernbert import modeling_modernbert  # noqa: F401, imports are apart
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

    torch.set_num_threads(1)

    def load() -> Run:
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        causal = model.config.architectures[0].endswith("ForCausalLM")

        def run(ids: NDArray[np.int64]) -> Vectors:
            with torch.inference_mode():
                hidden = model(input_ids=torch.from_numpy(ids)).last_hidden_state  # (B, S, E)
                pooled = hidden[:, -1] if causal else hidden.mean(dim=1)  # (B, E)
            return np.asarray(pooled)

        return run

    return load


def resident(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}")


def reset_peak() -> None:
    """Let VmHWM start again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


if __name__ == "__main__":
    main()
