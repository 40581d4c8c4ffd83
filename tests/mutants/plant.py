"""Plants each fault alone in a copy of the drivers and runs the tests that must see it.

Exit code 0 where all are caught. A copy's tests are run unchanged first, so what fails later fails
for the fault; a run that ends in another way than failed tests counts as an error, not as caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.fault import Fault
from tests.mutants.faults import FAULTS

ROOT = Path(__file__).parents[2]
COPIED = ("arch", "docs", "drivers", "pipeline", "pyproject.toml", "tests")
LIMIT_SECONDS = 300
PASSED, FAILED = 0, 1  # pytest's own exit codes


def copy_of_the_project(folder: Path) -> Path:
    """The packages and their tests in `folder`, without compiled files."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            leave_out = shutil.ignore_patterns("__pycache__", "golden", "e2e", "flow", "models")
            shutil.copytree(source, folder / name, ignore=leave_out)
        else:
            shutil.copy2(source, folder / name)
    return folder


def run_tests(project: Path, names: Sequence[str]) -> tuple[int, str]:
    """pytest's exit code on test files of tests/ops, and the first failure's name."""
    files = [f"tests/ops/test_{name}.py" for name in names]
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--tb=no", *files]
    env = os.environ | {"PYTHONPATH": str(project), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    first = failures[0].removeprefix("FAILED ").partition(" - ")[0] if failures else ""
    return done.returncode, first.partition("::")[2] or done.stdout[-300:]


def planted(source: str, fault: Fault) -> str:
    """The source with the fault. Raises ValueError where its place is not there exactly once."""
    if source.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {source.count(fault.old)} places in {fault.file}")
    faulty = source.replace(fault.old, fault.new)
    compile(faulty, fault.file, "exec")
    return faulty


def check(fault: Fault, projects: SimpleQueue[Path]) -> tuple[str, str, float]:
    """(caught, survived or error; the test or the reason; seconds)."""
    project = projects.get()
    path = project / fault.file
    sound = path.read_text(encoding="utf-8")
    started = time.monotonic()
    try:
        path.write_text(planted(sound, fault), encoding="utf-8")
        code, first = run_tests(project, fault.tests.split())
    except (ValueError, SyntaxError, subprocess.TimeoutExpired) as error:
        return "error", str(error), time.monotonic() - started
    finally:
        path.write_text(sound, encoding="utf-8")
        projects.put(project)
    verdict = {PASSED: "survived", FAILED: "caught"}.get(code, "error")
    return verdict, first, time.monotonic() - started


def main() -> int:
    """Plant what was asked for, print a line for each, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of the names of the faults to plant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    faults = [f for f in FAULTS if not args.only or any(part in f.name for part in args.only)]
    started = time.monotonic()
    verdicts = []
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(args.jobs) as pool:
        projects: SimpleQueue[Path] = SimpleQueue()
        for number in range(args.jobs):
            projects.put(copy_of_the_project(Path(temporary) / str(number)))
        names = sorted({name for fault in faults for name in fault.tests.split()})
        sound = projects.get()
        code, first = run_tests(sound, names)
        projects.put(sound)
        if code != PASSED:
            print(f"the tests fail without any fault: {first}")
            return 1
        results = pool.map(lambda fault: check(fault, projects), faults)
        for fault, (verdict, reason, seconds) in zip(faults, results, strict=True):
            verdicts.append(verdict)
            print(f"{verdict:8} {seconds:5.1f} s  {fault.name}: {reason}", flush=True)
    caught = verdicts.count("caught")
    print(f"{caught} of {len(faults)} faults caught in {time.monotonic() - started:.0f} s")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
