"""Speed of each native operation against what the machine can do, on one thread.

    python benchmarks/ops.py [--driver cpu[:SET]] [--rounds 5] [--model M] [--texts FILE.jsonl]

Operations run through the driver, with the shapes of MiniLM, BGE-base and ModernBERT-base, on
memory that was used before. Beside each, in every round, run the machine's peak (multiply-adds, or
products of tiles, on registers alone) and NumPy's BLAS on the same product in float32, without
bias or activation. Seconds are of the thread's CPU time, which neighbours on the machine disturb
least. Last, how much of a whole forward pass is native code (native_share.py).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from model_folders import MINILM, folder_of, model_name
from native_share import native_share
from op_cases import TOKENS, Call, Case, Cases
from result_file import write_result
from texts import DOCSTRINGS, read_texts

from drivers import open_driver
from drivers.cpu import CpuDriver
from drivers.cpu.native_module import native_module

SECONDS = 0.03  # CPU time of one measurement, about
BLAS = "numpy_float32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--limit", type=int, default=200)
    args = parser.parse_args()
    driver = open_driver(args.driver)
    if not isinstance(driver, CpuDriver):
        raise SystemExit(f"driver '{args.driver}' has no native operations; wanted cpu or cpu:SET")
    texts = read_texts(args.texts)[: args.limit]
    with tempfile.TemporaryDirectory() as temporary:
        figures = measure_all(args, driver, folder_of(args.model, Path(temporary)), texts)
    settings = {
        "threads": 1,
        "tokens": TOKENS,
        "rounds": args.rounds,
        "instruction_set": driver.instruction_set,
        "model": args.model,
        "texts": DOCSTRINGS if args.texts is None else args.texts.name,
        "num_texts": len(texts),
    }
    print("written:", write_result("ops", settings, figures, ["rayvec", "numpy"]))


def measure_all(
    args: argparse.Namespace, driver: CpuDriver, folder: Path, texts: list[str]
) -> dict[str, Any]:
    dtypes = [dtype for dtype in driver.dtypes if dtype != np.float16]  # float16 is composed
    figures: dict[str, Any] = {"operations": [], "native_share": {}}
    for dtype in dtypes:
        figures["operations"] += measure(driver, dtype, args.rounds)
        share = native_share(args.driver, str(dtype), folder, texts, args.rounds)
        figures["native_share"][str(dtype)] = share
        print(f"{dtype!s:<9} forward pass of {model_name(args.model)}: {share['share']:.1%} native")
    return figures


def measure(driver: CpuDriver, dtype: np.dtype[Any], rounds: int) -> list[dict[str, Any]]:
    """The figures of every operation in one dtype."""
    peak, peak_work = peak_of(driver, dtype)
    found = []
    driver.begin_batch()  # caps BLAS at one thread too
    try:
        for case in Cases(driver, dtype):
            native, composed = driver.native_calls.total(), driver.composed_calls.total()
            calls = {"peak": (peak, peak_work), "ours": (scoped(driver, case.call), case.work)}
            if case.blas is not None:
                calls[BLAS] = (case.blas, case.work)
            rates = alternate(calls, rounds)
            if driver.composed_calls.total() > composed or driver.native_calls.total() == native:
                raise SystemExit(f"{case.operation} {case.shape} in {dtype} ran no native code")
            found.append(figure(case, dtype, rates))
            print(line_of(found[-1]), flush=True)
    finally:
        driver.end_batch()
    return found


def figure(case: Case, dtype: np.dtype[Any], rates: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "operation": case.operation,
        "shape": case.shape,
        "dtype": str(dtype),
        "unit": case.unit,
        "rate": statistics.median(rates["ours"]) / 1e9,
        "rates": [rate / 1e9 for rate in rates["ours"]],
    }
    if case.unit == "GFLOP/s":
        shares = [ours / peak for ours, peak in zip(rates["ours"], rates["peak"])]
        row["peak"] = statistics.median(rates["peak"]) / 1e9
        row["share_of_peak"] = statistics.median(shares)
        if row["share_of_peak"] > 1.1:
            raise SystemExit(f"{case.operation} {case.shape} in {dtype} is faster than can be")
    if BLAS in rates:
        row[BLAS] = statistics.median(rates[BLAS]) / 1e9
    return row


def line_of(row: dict[str, Any]) -> str:
    line = f"{row['dtype']:<9} {row['operation']:<13} {row['shape']:<34} "
    line += f"{row['rate']:8.1f} {row['unit']:<7}"
    if "share_of_peak" in row:
        line += f"  {row['share_of_peak']:6.1%} of {row['peak']:.0f}"
    if BLAS in row:
        line += f"  NumPy {row[BLAS]:.1f}"
    return line


# ---- timing


def alternate(calls: dict[str, tuple[Call, float]], rounds: int) -> dict[str, list[float]]:
    """Work per CPU second of each call, by round."""
    repeats = {name: repeats_for(call) for name, (call, _) in calls.items()}
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (call, work) in calls.items():
            rates[name].append(work * repeats[name] / cpu_seconds(call, repeats[name]))
    return rates


def repeats_for(call: Call) -> int:
    repeats = 1
    while (took := cpu_seconds(call, repeats)) < SECONDS / 4:
        repeats *= 2
    return max(1, round(repeats * SECONDS / took))


def cpu_seconds(call: Call, repeats: int) -> float:
    started = time.thread_time()
    for _ in range(repeats):
        call()
    return time.thread_time() - started


def scoped(driver: CpuDriver, call: Call) -> Call:
    """The call on memory that the one before it used."""

    def run() -> None:
        cursor = driver.save_pool_cursor()
        computed(call())
        driver.restore_pool_cursor(cursor)

    return run


def computed(result: Any) -> Any:
    """A driver may leave a product to the operation after it: have it done, and kept in place."""
    tokens = getattr(result, "tokens", None)
    return tokens() if callable(tokens) else result


def peak_of(driver: CpuDriver, dtype: np.dtype[Any]) -> tuple[Call, float]:
    """A call that does nothing but the multiply-adds of this dtype, and how many operations."""
    testing, kernels = native_module().testing, driver.kernels
    peak = testing.fma_peak if dtype == np.float32 else testing.tile_peak
    iterations = 10_000
    work = peak(kernels, iterations)
    return lambda: peak(kernels, iterations), work


if __name__ == "__main__":
    main()
