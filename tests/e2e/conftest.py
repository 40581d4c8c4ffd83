"""One small Ray cluster for all end-to-end tests, a tiny model, and places to run in."""

from __future__ import annotations

import logging
import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import Embedder
from tests.e2e.runs import ROOT, Job, Result, Row, words, write_lines
from tests.models.folders import TinyBert, build
from tests.object_store import BUCKET

CPUS = 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here share one Ray cluster: where tests run in parallel, these keep together."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def ray_address(tmp_path_factory: pytest.TempPathFactory, s3_endpoint: str) -> Iterator[str]:
    """The address of a cluster that this process is connected to; it ends with the session.

    Its workers take the keys of the S3 server from the environment that the cluster starts in.
    """
    import ray
    import ray.data

    folder = tmp_path_factory.mktemp("ray")
    token = folder / "token"
    token.write_text(uuid.uuid4().hex)
    patch = pytest.MonkeyPatch()
    patch.delenv("RAY_ADDRESS", raising=False)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.delenv("RAY_AUTH_MODE", raising=False)  # ray.init turns tokens on by itself
    patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    patch.setenv("PYTHONPATH", os.pathsep.join(paths))
    context = ray.init(address="local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False)
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # it tells pages to a failing test
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()
        patch.undo()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 32 dimensions and 64 positions that embeds thousands of short texts a second."""
    return build(tmp_path_factory.mktemp("model") / "tiny", TinyBert(normalize=True))


@pytest.fixture(scope="session")
def embedder(tiny_model: Path) -> Iterator[Embedder]:
    """The tiny model in this process: what every run has to agree with."""
    with Embedder.open(tiny_model) as opened:
        yield opened


@pytest.fixture(scope="session")
def corpus_rows() -> list[Row]:
    """1,200 rows whose integer ids are in no order."""
    ids = list(range(1200))
    random.Random(5).shuffle(ids)
    return [{"id": id, "text": f"{id} {words(3 + id % 17, id)}"} for id in ids]


@pytest.fixture(scope="session")
def finished(
    ray_address: str,
    tiny_model: Path,
    corpus_rows: list[Row],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Job, Result]:
    """A job over 20 files and 40 shards, run once as a process of its own. Not to be changed."""
    job = Job(tmp_path_factory.mktemp("finished"), tiny_model, ray_address)
    for file in range(20):
        write_lines(job.corpus / f"{file:02}.jsonl", corpus_rows[file::20])
    job.set("source", rows_per_shard=30)
    return job, job.run_process()


@pytest.fixture
def job(ray_address: str, tiny_model: Path, tmp_path: Path) -> Job:
    """A job over `tmp_path`/corpus into the local folder `tmp_path`/index."""
    return Job(tmp_path, tiny_model, ray_address)


@pytest.fixture(params=["local", "s3"])
def sink_of(request: pytest.FixtureRequest, tmp_path: Path, s3_endpoint: str) -> dict[str, str]:
    """Where an index goes, as arguments of a Job: a local folder, and a bucket."""
    if request.param == "local":
        return {"sink": str(tmp_path / "index")}
    return {"sink": f"s3://{BUCKET}/{uuid.uuid4().hex}", "endpoint": s3_endpoint}
