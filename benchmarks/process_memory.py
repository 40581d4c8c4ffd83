"""What one system costs a process of its own: memory, and the time to its first vector.

The process imports, waits, opens the model, embeds one text, then the others, and waits again; its
parent reads the clock, and the process's proportional set size (PSS) from the system: pages that
are shared with other processes count in part. embed.py starts it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers import Setup, system_named

IMPORTED, FIRST, DONE = "imported", "first", "done"


def measure(
    name: str, setup: Setup, batch: int | None, texts: Path, second: bool
) -> dict[str, Any]:
    """Figures of one process, and with `second` of another beside it.

    texts: a JSON list. pss_bytes: beyond what the process had after its imports.
    second_pss_bytes: what another process adds to both together, after its imports.
    """
    with Process(name, setup, batch, texts) as one:
        alone = -one.imported()
        alone += one.embedded()
        figures: dict[str, Any] = {
            "pss_bytes": alone,
            "first_vector_seconds": [one.first_vector_seconds],
        }
        if second:
            with Process(name, setup, batch, texts) as other:
                added = -(other.imported() + one.pss())
                added += other.embedded() + one.pss()
                figures["second_pss_bytes"] = added
                figures["first_vector_seconds"].append(other.first_vector_seconds)
    return figures


class Process:
    """A process that holds one system, and is told when to go on."""

    def __init__(self, name: str, setup: Setup, batch: int | None, texts: Path) -> None:
        self.first_vector_seconds = 0.0
        root = Path(__file__).parent.parent
        said = [name, json.dumps([*map(str, setup[:2]), *setup[2:]]), json.dumps(batch), str(texts)]
        path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, __file__, *said],
            env=os.environ | {"OMP_NUM_THREADS": str(setup.threads), "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def imported(self) -> int:
        """PSS after the imports."""
        self._wait_for(IMPORTED)
        reading = time.perf_counter()
        found = self.pss()
        self._started += time.perf_counter() - reading  # the process waits meanwhile
        return found

    def embedded(self) -> int:
        """PSS after the model was opened and the texts embedded."""
        self._go_on()
        self._wait_for(FIRST)
        self.first_vector_seconds = time.perf_counter() - self._started
        self._wait_for(DONE)
        return self.pss()

    def pss(self) -> int:
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text(encoding="utf-8")
        (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
        return int(line.split()[1]) * 1024

    def _wait_for(self, wanted: str) -> None:
        assert self._process.stdout is not None
        got = self._process.stdout.readline().strip()
        if got != wanted:
            raise SystemExit(f"a process ended before it said '{wanted}'")

    def _go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


def live() -> None:
    """The life of such a process."""
    parser = argparse.ArgumentParser()
    for word in ("name", "setup", "batch", "texts"):
        parser.add_argument(word)
    args = parser.parse_args()
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    folder, graphs, *limits = json.loads(args.setup)
    setup = Setup(Path(folder), Path(graphs), *limits)
    texts = json.loads(Path(args.texts).read_text(encoding="utf-8"))
    system = system_named(args.name)
    for module in system.imports:
        importlib.import_module(module)
    print(IMPORTED, file=answers, flush=True)
    sys.stdin.readline()
    encode = system.open(setup)(json.loads(args.batch))
    encode(texts[:1])
    print(FIRST, file=answers, flush=True)
    vectors = encode(texts)
    print(DONE, file=answers, flush=True)
    sys.stdin.read()
    del vectors


if __name__ == "__main__":
    live()
