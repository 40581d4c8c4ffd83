"""The contract's tests and the goldens on the card, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
# pytest, which an interrupt ends even where this process ignores them, as a background job does.
PYTEST = (
    "import signal, sys, pytest\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "sys.exit(pytest.main(sys.argv[1:]))"
)
GRACE_SECONDS = 20.0  # for pytest to tell what it has when it is stopped
SAID = 300  # characters of a failure's message


def run_tests(
    device: str, paths: Sequence[str], seconds: float, folder: Path, options: Sequence[str] = ()
) -> dict[str, Any]:
    """What of the tests passed on the device; those that `seconds` do not suffice for are left out.

    folder: for pytest's report. options: more for its command line. Raises RuntimeError with what
    pytest said where it has run nothing.
    """
    report, said = folder / "tests.xml", folder / "tests.log"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-c", PYTEST, "-m", "slow or not slow", "-k", device]
    command += ["--tb=short", f"--junitxml={report}", *options, *paths]
    started = time.perf_counter()
    with said.open("w", encoding="utf-8") as file:
        running = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"RAYVEC_TEST_DRIVERS": device},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        stopped = not _ended(running, seconds)
        if stopped:
            running.send_signal(signal.SIGINT)
            if not _ended(running, GRACE_SECONDS):
                running.kill()
                running.wait()
    if not report.exists():
        lines = said.read_text(encoding="utf-8").splitlines()
        raise RuntimeError(f"pytest ended with {running.returncode}: " + "\n".join(lines[-20:]))
    return {
        "seconds": time.perf_counter() - started,
        "stopped": stopped,
        **outcomes(report, stopped),
    }


def outcomes(report: Path, stopped: bool) -> dict[str, Any]:
    """How many tests passed, and each one that did not, with what it said.

    stopped: the last test of the report was cut off, and did neither.
    """
    passed, skipped, failed = 0, 0, []
    cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases[:-1] if stopped else cases:
        trouble = [*case.findall("failure"), *case.findall("error")]
        if trouble:
            name = f"{case.get('classname')}::{case.get('name')}"
            failed.append({"test": name, "said": trouble[0].get("message", "")[:SAID]})
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "skipped": skipped, "failed": failed}


def _ended(running: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
