"""The CUDA driver on a card: whether it is right, and how fast against what the card can do.

    python -m drivers.cuda.build --arch sm_90
    python benchmarks/gpu.py [--device cuda:0] [--rounds 5] [--limit 20000] [--texts FILE.jsonl]
        [--minutes 10] [--results FOLDER]

Everything is of one run: copies and matrix products, which give the ceilings; the goldens and the
contract's tests, through the driver as it is; models against transformers, which takes part where
torch and transformers are installed; layers, attention, norms and look-ups. The stages stand by how
much they tell: one that there is too little time left for is skipped by name, one that fails is
recorded, and the next follows. The result file is written anew after each. Exit status 1 where a
test or a stage failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from gpu_driver import MeasuredCuda
from gpu_models import Setting, measure_model
from gpu_ops import Bench
from gpu_sizes import Sizes
from gpu_tests import run_tests
from gpu_timing import DeviceClock
from model_folders import folder_of, model_name
from result_file import RESULTS, write_result
from texts import DOCSTRINGS, read_texts

from drivers import DriverError
from drivers.cuda.cupy_device import open_device
from drivers.cuda.device import BatchDevice
from drivers.cuda.opening import device_index, import_cupy
from drivers.dtypes import FLOAT16, FLOAT32

PACKAGES = ["rayvec", "numpy", "tokenizers", "cupy-cuda12x", "cupy-cuda13x", "torch"]
PACKAGES += ["transformers", "pytest"]
CARD_QUERY = "name,driver_version,clocks.max.sm,power.limit"
TESTS = {"goldens": ("tests/models",), "contract": ("tests/ops",)}
OPERATIONS = {"layers": Bench.layers, "attention": Bench.attention, "rows": Bench.rows}
TESTS_FRACTION = 0.25  # of the time, at most, for each


class Stage(NamedTuple):
    """A part of the run. seconds: what it needs at least to be worth a start."""

    name: str
    seconds: float
    run: Callable[[], Any]


class Run:
    """One run: its driver, its time, and its figures so far."""

    def __init__(
        self,
        args: argparse.Namespace,
        driver: MeasuredCuda,
        sizes: Sizes,
        folder: Path,
        test_options: Sequence[str],
    ) -> None:
        """folder: for what is written and needed during the run alone."""
        self.args = args
        self.driver = driver
        self.folder = folder
        self.sizes = sizes
        self.test_options = test_options
        self.begun = datetime.now(timezone.utc)
        self._started = time.perf_counter()
        self.texts = read_texts(args.texts)[: args.limit]
        self.figures: dict[str, Any] = {"skipped": [], "failed": {}, "stage_seconds": {}}

    @cached_property
    def clock(self) -> DeviceClock:
        """Made by the first stage that needs it, and recorded where that fails."""
        return DeviceClock(self.driver, self.sizes.products[0], self.sizes.seconds)

    @cached_property
    def bench(self) -> Bench:
        """As `clock`."""
        return Bench(self.driver, self.clock, self.sizes, self.args.rounds)

    def stages(self) -> list[Stage]:
        """What tells most comes first."""
        models = self.sizes.models
        return [
            Stage("kernels", 0, self._load_kernels),
            Stage("ceilings", 0, lambda: self.bench.measure_ceilings()),
            *(Stage(name, 20, partial(self._tests, paths)) for name, paths in TESTS.items()),
            *(Stage(model_name(model), 60, partial(self._model, model)) for model in models),
            *(Stage(name, 15, partial(self._operations, name)) for name in OPERATIONS),
        ]

    def go(self) -> Path:
        """Every stage that there is time for; the result file."""
        for stage in self.stages():
            left = self.seconds_left()
            print(f"\n== {stage.name}, {left:.0f} s left", flush=True)
            if left < stage.seconds:
                self.figures["skipped"].append(stage.name)
                print(f"skipped: it needs {stage.seconds:.0f} s")
                continue
            started = time.perf_counter()
            try:
                self.figures[stage.name] = stage.run()
            except Exception as error:
                self.figures["failed"][stage.name] = f"{type(error).__name__}: {error}"
                traceback.print_exc()
            self.figures["stage_seconds"][stage.name] = time.perf_counter() - started
            self._write()
        return self._write()

    def seconds_left(self) -> float:
        """Of the time that the run may take."""
        minutes: float = self.args.minutes
        return 60 * minutes - (time.perf_counter() - self._started)

    def ok(self) -> bool:
        """Whether nothing failed of what was run."""
        tests = [self.figures[name] for name in TESTS if name in self.figures]
        wrong = any(found["failed"] or not found["passed"] for found in tests if "passed" in found)
        return not wrong and not self.figures["failed"]

    def _load_kernels(self) -> float:
        """All for the two storage types; the seconds that it takes, which include no compiler's
        where they were built ahead."""
        started = time.perf_counter()
        for dtype in (FLOAT16, FLOAT32):
            self.driver.clock.load_kernels(dtype)
        return time.perf_counter() - started

    def _tests(self, paths: Sequence[str]) -> dict[str, Any]:
        if importlib.util.find_spec("pytest") is None:
            print("left out: pytest is not installed")
            return {"left_out": "pytest is not installed"}
        seconds = min(self.seconds_left(), TESTS_FRACTION * 60 * self.args.minutes)
        found = run_tests(self.args.device, paths, seconds, self.folder, self.test_options)
        for failure in found["failed"]:
            print(f"FAILED {failure['test']}: {failure['said']}")
        end = ", stopped before the end" if found["stopped"] else ""
        print(f"{found['passed']} passed, {len(found['failed'])} failed{end}")
        return found

    def _model(self, model: str) -> dict[str, Any]:
        setting = Setting(
            self.driver,
            self.clock,
            self.sizes,
            self.args.device,
            self.args.rounds,
            1e12 * self.bench.ceilings.get("TFLOP/s", 0.0),
        )
        folder = folder_of(model, self.folder)
        return {"model": model} | measure_model(setting, folder, self.texts)

    def _operations(self, name: str) -> list[dict[str, Any]]:
        return self.bench.measure(OPERATIONS[name](self.bench))

    def _write(self) -> Path:
        memory = getattr(self.driver.clock, "memory", None)
        settings = {
            "device": self.args.device,
            "card": self.driver.clock.facts() | {"nvidia_smi": nvidia_smi()},
            "rounds": self.args.rounds,
            "minutes": self.args.minutes,
            "texts": DOCSTRINGS if self.args.texts is None else self.args.texts.name,
            "num_texts": len(self.texts),
            "max_seq_len": self.sizes.length,
            "tokens": self.sizes.tokens,
            "arena_bytes": getattr(memory, "arena_bytes", None),
        }
        where = {"folder": self.args.results, "begun": self.begun}
        return write_result("gpu", settings, self.figures, PACKAGES, **where)


def nvidia_smi() -> str | None:
    """What NVIDIA's tool says of the cards, a line each; None where there is no such tool."""
    command = ["nvidia-smi", f"--query-gpu={CARD_QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def open_card(name: str) -> BatchDevice:
    """The device. Raises DriverError."""
    return open_device(import_cupy(name), device_index(name))


def main(
    words: Sequence[str] | None = None,
    opened: Callable[[str], BatchDevice] = open_card,
    sizes: Sizes | None = None,
    test_options: Sequence[str] = (),
) -> int:
    """One run; its exit status. Raises SystemExit in one line where there is no card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=20000)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    try:
        driver = MeasuredCuda(opened(args.device))
    except DriverError as error:
        raise SystemExit(str(error)) from error
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(args, driver, sizes or Sizes(), Path(temporary), test_options)
        print("written:", run.go())
    return 0 if run.ok() else 1


if __name__ == "__main__":
    sys.exit(main())
