"""A `rayvec` job over a small corpus: its files, its config, its command and what came of it."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from pipeline import Embedder
from pipeline.cli import main
from pipeline.config import RunConfig, load_config
from pipeline.index import Index
from pipeline.manifest import version_numbers
from pipeline.sink import Receipt, count_receipts
from pipeline.store import Store
from tests.models.folders import WORDS

ROOT = Path(__file__).resolve().parents[2]
ENTRY = (sys.executable, "-c", "from pipeline.cli import entry; entry()")
NOWHERE = "127.0.0.1:1"
RUN_SECONDS = 120.0
TOLERANCE = 1e-6
PLAN_LINE = re.compile(r"[\d,]+ shards, [\d,]+ rows in [\d,]+ files: ")
PROGRESS_LINE = re.compile(
    r"\d+/\d+ shards  [\d,]+ rows  [\d,]+ tokens  \d+ rows/s  [\d,]+ tokens/s  "
    r"\d+ dead letters  .+ left"
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that says what went wrong."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("rayvec: ")]
        return line


@dataclass
class Job:
    """One config, and the command with it. `sections` are what the config says beside its places.

    Commands run in this process, on the cluster it is connected to, or as processes of their own.
    """

    folder: Path
    model: Path
    address: str
    sink: str = ""
    endpoint: str | None = None
    corpus: Path = Path()
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sink = self.sink or str(self.folder / "index")
        if self.corpus == Path():
            self.corpus = self.folder / "corpus"
        self.corpus.mkdir(parents=True, exist_ok=True)
        self.set("workers", count=1)

    @property
    def config_path(self) -> Path:
        """The YAML file, written anew."""
        said: dict[str, dict[str, Any]] = {
            "model": {"path": str(self.model)},
            "source": {"format": "jsonl", "uri": str(self.corpus)},
            "sink": {"uri": self.sink},
        }
        if self.endpoint is not None:
            said["storage"] = {"endpoint": self.endpoint}
        for section, keys in self.sections.items():
            said[section] = said.get(section, {}) | keys
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(said), encoding="utf-8")
        return path

    def set(self, section: str, **keys: Any) -> Job:
        """Change keys of the config."""
        self.sections[section] = self.sections.get(section, {}) | keys
        return self

    def copy(self, folder: Path) -> Job:
        """The same job in `folder`, with an index of its own over the same files.

        The files are hard links: they are the same by name, time and inode, and may be removed.
        """
        shutil.copytree(self.corpus, folder / "corpus", copy_function=os.link)
        if Path(self.sink).exists():
            shutil.copytree(self.sink, folder / "index")
        copied = Job(folder, self.model, self.address)
        for section, keys in self.sections.items():
            copied.set(section, **keys)
        return copied

    def config(self, *overrides: str) -> RunConfig:
        return load_config(self.config_path, overrides)

    def start(self, *arguments: str, address: str | None = None) -> subprocess.Popen[str]:
        """`rayvec run` as a process of its own."""
        return subprocess.Popen(
            [*ENTRY, "run", str(self.config_path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"RAY_ADDRESS": address or self.address},
        )

    def run_process(self, *arguments: str, address: str | None = None) -> Result:
        return finish(self.start(*arguments, address=address))

    def run(self, *arguments: str) -> Result:
        """`rayvec run` in this process."""
        return call("run", str(self.config_path), *arguments)

    def plan(self, *arguments: str) -> Result:
        return call("plan", str(self.config_path), *arguments)

    def read(self, command: str, *arguments: str) -> Result:
        """A command on the index: status, verify, files, versions or search."""
        place = [] if self.endpoint is None else ["--endpoint", self.endpoint]
        return call(command, self.sink, *arguments, *place)

    @property
    def store(self) -> Store:
        return Store.open(self.sink, endpoint=self.endpoint)

    def index(self, version: int | None = None) -> Index:
        return Index.open(self.sink, version, endpoint=self.endpoint)

    def table(self, version: int | None = None) -> pa.Table:
        """Every row of a version."""
        return pa.Table.from_batches(self.index(version).to_batches())

    def stored(self) -> list[str]:
        """The key of every object in the index's place."""
        return [info.key for info in self.store.list()]

    def versions(self) -> list[int]:
        return version_numbers(self.store)

    def receipts(self) -> set[str]:
        """Keys of all shards that have a receipt."""
        return set().union(*count_receipts(self.store).values())


def call(*arguments: str) -> Result:
    """The command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def finish(process: subprocess.Popen[str]) -> Result:
    """The end of a process; one that does not end is killed, and the test fails."""
    try:
        out, err = process.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Result(process.returncode, out, err)


def ended(process: subprocess.Popen[Any], seconds: float) -> bool:
    """Wait that long for a process; whether it has ended."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def is_ours(line: str) -> bool:
    """Whether a line of standard error is the plan or progress, or Ray's note on its log level."""
    return bool(PLAN_LINE.match(line) or PROGRESS_LINE.fullmatch(line) or "logging.cc" in line)


def words(count: int, seed: int) -> str:
    """A text of that many words of the tiny model's vocabulary."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def rows(numbers: Iterable[int], length: int = 8) -> list[Row]:
    """Rows with ids r0, r1, ... and texts that differ."""
    return [{"id": f"r{n}", "text": f"{n} {words(length, n)}"} for n in numbers]


def write_lines(path: Path, lines: Iterable[Row | bytes]) -> Path:
    """A file of JSON lines; bytes are lines as they are."""
    made = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # it may be a link to a file of another job
    path.write_bytes(b"".join(line + b"\n" for line in made))
    return path


def texts_of(made: Iterable[Row]) -> dict[Any, str]:
    """id -> text."""
    return {row["id"]: row["text"] for row in made}


def vectors_of(table: pa.Table) -> NDArray[np.float32]:
    """(rows, D) float32."""
    column = table["vector"].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), column.type.list_size).astype(np.float32)


def vectors_by_id(table: pa.Table) -> dict[Any, NDArray[np.float32]]:
    """id -> its vector; an id that is there twice fails."""
    ids = table["id"].to_pylist()
    assert len(set(ids)) == len(ids), "an id is there twice"
    return dict(zip(ids, vectors_of(table)))


def check_rows(
    table: pa.Table,
    texts: Mapping[Any, str],
    embedder: Embedder,
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Every id is there once, with the vector of its own text."""
    found = vectors_by_id(table)
    assert found.keys() == texts.keys()
    ids = list(texts)
    want = embedder.encode([texts[id] for id in ids])
    np.testing.assert_allclose(np.stack([found[id] for id in ids]), want, rtol=0, atol=tolerance)


def check_sound(job: Job) -> None:
    """No receipt without its part, no id twice, and no part in a version that no receipt counts."""
    report = job.index().verify()
    assert report.problems == ()
    assert report.duplicate_ids == 0
    counted = {receipt.part for receipt in all_receipts(job)}
    stored = {key for key in job.stored() if key.startswith("parts/")}
    assert counted <= stored
    assert {entry.part for n in job.versions() for entry in job.index(n).parts()} <= counted
    assert len(stored - counted) == report.orphan_parts


def all_receipts(job: Job) -> list[Receipt]:
    """Every receipt of the place, of whatever run."""
    keys = [key for key in job.stored() if key.startswith("receipts/")]
    return [Receipt.from_json(job.store.get(key), key) for key in keys]
