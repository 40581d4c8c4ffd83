"""How much of a forward pass that Python drives is spent in native code."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from drivers.cpu import CpuDriver
from drivers.cpu.native_module import open_kernels
from drivers.types import NormWeights
from pipeline import Embedder
from pipeline.bucketing import plan_batches

EMPTY_CALLS = 2000


class TimedKernels:
    """Kernels that add up the CPU seconds of their calls."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self.seconds = 0.0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kernels, name)
        if not callable(found):
            return found

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return found(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started
                self.calls += 1

        setattr(self, name, timed)
        return timed


def native_share(
    driver_name: str, dtype: str, folder: Path, texts: list[str], rounds: int
) -> dict[str, Any]:
    """The share of the CPU seconds, on one thread, from encodings to vectors.

    What a call without work costs, crossing over and the clock included, counts as Python: the
    work in one native call would not have it.
    """
    timed = TimedKernels(open_kernels(driver_name.partition(":")[2] or None))
    with patch("drivers.cpu.driver.open_kernels", lambda _: timed):
        driver = CpuDriver()
    empty = seconds_of_an_empty_call(driver, timed)
    with Embedder.open(folder, driver=driver, dtype=dtype) as embedder:
        encodings = embedder.tokenizer.encode(texts).encodings
        plan = plan_batches([len(e) for e in encodings], embedder.max_batch_tokens)
        batches = [[encodings[row] for row in rows] for rows in plan]
        shares, totals, natives = [], [], []
        for number in range(rounds + 1):  # the first warms up
            timed.seconds, timed.calls = 0.0, 0
            started = time.thread_time()
            for batch in batches:
                driver.begin_batch()
                embedder.model.forward(driver, batch)
                driver.end_batch()
            total = time.thread_time() - started
            if number:
                natives.append(timed.seconds - timed.calls * empty)
                totals.append(total)
                shares.append(natives[-1] / total)
    return {
        "share": statistics.median(shares),
        "calls_per_batch": timed.calls / len(batches),
        "batches": len(batches),
        "tokens": sum(map(len, encodings)),
        "seconds_of_an_empty_call": empty,
        "native_seconds": natives,
        "seconds": totals,
    }


def seconds_of_an_empty_call(driver: CpuDriver, timed: TimedKernels) -> float:
    nothing, one = np.empty((0, 32), np.float32), np.ones(32, np.float32)
    norm = NormWeights(one, one, 1e-12)
    timed.seconds, timed.calls = 0.0, 0
    for _ in range(EMPTY_CALLS):
        driver.add_norm(nothing, nothing, norm)
    if timed.calls != EMPTY_CALLS:
        raise SystemExit("add_norm ran no native code")
    return timed.seconds / timed.calls
