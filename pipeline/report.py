"""What a run tells: progress while it goes, and where the time went when it is done."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pipeline.manifest import Version
from pipeline.run import PreparedRun
from pipeline.shard_work import Payload

LINE_SECONDS = 10.0
STAGES = ("read", "embed", "write")


class RunReport:
    """Counts what was done; a bar on a terminal, a line every ten seconds elsewhere.

    Progress goes to standard error.
    """

    def __init__(self, run: PreparedRun) -> None:
        self._run = run
        self._planned_rows = sum(task.shard.rows for task in run.todo)
        self._done_shards = self._rows = self._source_rows = self._tokens = self._letters = 0
        self._rows_of = {task.work_key: task.shard.rows for task in run.todo}
        self._seconds: Counter[str] = Counter()
        self._started = time.monotonic()
        self._said = self._started
        self._show: Callable[[], None] = self._print_sometimes

    def plan_line(self) -> str:
        """What there is and what is left to do, in one line."""
        plan, run = self._run.plan, self._run
        return (
            f"{len(plan.shards)} shards, {plan.num_rows:,} rows in {plan.num_files:,} files: "
            f"{len(run.kept)} kept from version {run.base.version if run.base else 0}, "
            f"{len(run.done)} done by a broken run, {len(run.todo)} to embed, "
            f"{run.dropped_shards} dropped"
        )

    @contextmanager
    def following(self) -> Iterator[None]:
        """Show progress while the block runs."""
        console = Console(stderr=True)
        if not console.is_terminal:
            yield
            return
        columns = (BarColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task(self.progress_line(), total=self._planned_rows)
            self._show = lambda: progress.update(
                bar, completed=self._source_rows, description=self.progress_line()
            )
            yield

    def _print_sometimes(self) -> None:
        now = time.monotonic()
        if now - self._said >= LINE_SECONDS:
            self._said = now
            print(self.progress_line(), file=sys.stderr, flush=True)

    def add(self, payload: Payload) -> None:
        """Count a shard that was written."""
        if payload.failure is not None:
            return
        self._done_shards += 1
        self._rows += payload.rows
        self._source_rows += self._rows_of[payload.work_key]
        self._tokens += payload.tokens
        self._letters += len(payload.letters)
        self._seconds.update(payload.seconds)
        self._show()

    def progress_line(self) -> str:
        """Shards, rows, rates and the time left, in one line."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        left = "unknown"
        if self._source_rows:
            remaining = self._planned_rows - self._source_rows
            left = duration(seconds * remaining / self._source_rows)
        return (
            f"{self._done_shards}/{len(self._run.todo)} shards  {self._rows:,} rows  "
            f"{self._tokens:,} tokens  {self._rows / seconds:.0f} rows/s  "
            f"{self._tokens / seconds:,.0f} tokens/s  {self._letters} dead letters  {left} left"
        )

    def done_lines(self, version: Version) -> Iterator[str]:
        """What was committed and where the time went."""
        seconds = time.monotonic() - self._started
        yield (
            f"committed version {version.version}: {version.rows:,} rows in {version.parts} parts, "
            f"{version.tokens:,} tokens, {version.dead_letters} dead letters"
        )
        busy = sum(self._seconds.values())
        if busy:
            shares = ", ".join(f"{s} {self._seconds[s] / busy:.1%}" for s in STAGES)
            yield (
                f"embedded {self._rows:,} rows in {duration(seconds)}, start of Ray included; "
                f"worker time: {shares}"
            )


def duration(seconds: float) -> str:
    """Seconds as people say them: 7 s, 2 min 5 s, 1 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
