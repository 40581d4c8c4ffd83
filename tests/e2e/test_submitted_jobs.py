"""The command on a cluster of its own, and as a job that `ray job submit` sends to one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import Embedder
from tests.conftest import MINILM
from tests.e2e.runs import (
    ENTRY,
    ROOT,
    Job,
    check_rows,
    check_sound,
    ended,
    finish,
    is_ours,
    rows,
    texts_of,
    write_lines,
)

pytestmark = pytest.mark.slow

RAY = str(Path(sys.executable).with_name("ray"))
JOB_SECONDS = 300.0
START_SECONDS = 90.0
TICK_SECONDS = 0.1


@pytest.fixture(scope="module")
def dashboard(ray_address: str) -> Iterator[str]:
    """The address that jobs are submitted to: of a cluster of its own, as `ray start` makes it.

    All its ports are chosen: the agent that starts jobs gives up where its port is taken.
    """
    gcs, client, page, agent = free_ports(4)
    folder = tempfile.mkdtemp(prefix="rayvec-")  # a short path: sockets go there
    command = [RAY, "start", "--head", "--block", "--num-cpus=2", f"--temp-dir={folder}"]
    command += ["--node-ip-address=127.0.0.1", f"--port={gcs}", f"--dashboard-port={page}"]
    command += [f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    log = Path(folder) / "start.log"
    with open(log, "wb") as out:
        head = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (is_listening(page) and is_listening(agent)):
            assert not ended(head, TICK_SECONDS), log.read_text()
            assert time.monotonic() < deadline, log.read_text()
        yield f"http://127.0.0.1:{page}"
    finally:
        head.terminate()
        if not ended(head, START_SECONDS):
            head.kill()
            head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ray_job(dashboard: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [RAY, "job", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": dashboard},
    )


def submit(dashboard: str, job: Job, *options: str, overrides: tuple[str, ...] = ()):
    """`ray job submit` of the run, which follows the job's log until it ends."""
    command = [*ENTRY, "run", str(job.config_path), *overrides]
    return ray_job(dashboard, "submit", "--working-dir", ".", *options, "--", *command)


def done(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        log, _ = process.communicate(timeout=JOB_SECONDS)
    finally:
        process.kill()
    return process.returncode, log


def test_a_submitted_job_commits_and_its_exit_code_is_zero(
    dashboard: str, job: Job, embedder: Embedder
) -> None:
    made = rows(range(300))
    write_lines(job.corpus / "a.jsonl", made)
    job.set("source", rows_per_shard=50)
    code, log = done(submit(dashboard, job))
    assert code == 0, log
    assert "6 shards, 300 rows in 1 files: " in log
    assert "committed version 1: 300 rows in 6 parts" in log
    check_rows(job.table(), texts_of(made), embedder)
    code, log = done(submit(dashboard, job))
    assert code == 0, log
    assert "nothing to do: version 1 holds all 300 rows of this corpus" in log


@pytest.mark.parametrize(
    ("override", "said"),
    [("source.txt=1", "source.txt"), ("failure.max_bad_fraction=0.01", "rows are bad")],
    ids=["config", "guard"],
)
def test_a_submitted_job_that_fails_says_so_by_its_exit_code(
    dashboard: str, job: Job, override: str, said: str
) -> None:
    write_lines(job.corpus / "a.jsonl", [*rows(range(30)), b"not json"])
    code, log = done(submit(dashboard, job, overrides=("--set", override)))
    assert code != 0, log
    assert re.search(rf"^rayvec: .*{re.escape(said)}", log, re.MULTILINE), log
    assert job.versions() == []


def test_a_stopped_job_is_resumed_by_submitting_it_again(
    dashboard: str, job: Job, minilm: Path
) -> None:
    made = rows(range(800), length=24)
    write_lines(job.corpus / "a.jsonl", made)
    job.set("source", rows_per_shard=25).set("model", path=MINILM)
    name = f"rayvec-{os.getpid()}-{job.folder.name}"
    process = submit(dashboard, job, "--submission-id", name)
    try:
        while len(job.receipts()) < 2 and not ended(process, TICK_SECONDS):
            pass
        stop_code, stop_log = done(ray_job(dashboard, "stop", name))
        assert stop_code == 0, stop_log
    finally:
        _, log = done(process)
    assert f"Job '{name}' was stopped" in log, log  # ray's own exit code for that is 0
    assert job.versions() == []
    before = len(job.receipts())
    assert 2 <= before < 32
    code, log = done(submit(dashboard, job))
    assert code == 0, log
    assert f"{before} done by a broken run, {32 - before} to embed" in log
    assert "committed version 1: 800 rows in 32 parts" in log
    check_sound(job)


def test_without_an_address_the_run_starts_a_cluster_and_ends_it(
    job: Job, embedder: Embedder
) -> None:
    made = rows(range(100))
    write_lines(job.corpus / "a.jsonl", made)
    job.set("source", rows_per_shard=20)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    keep = {"RAY_AUTH_TOKEN_PATH": os.environ["RAY_AUTH_TOKEN_PATH"]}
    result = finish(
        subprocess.Popen(
            [*ENTRY, "run", str(job.config_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment | keep,
        )
    )
    assert result.code == 0, result.err
    assert "committed version 1: 100 rows in 5 parts" in result.out
    assert [line for line in result.err.splitlines() if not is_ours(line)] == []
    check_rows(job.table(), texts_of(made), embedder)
    again = job.run()
    assert again.out.startswith("nothing to do: ")
