"""Fixtures of the operations' tests."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import open_driver
from tests.conftest import DRIVERS


@pytest.fixture(params=[np.float32, np.float16], ids=["f32", "f16"])
def dtype(request):
    """Each storage type that a driver has."""
    return np.dtype(request.param)


@pytest.fixture(params=[*DRIVERS, "null"])
def any_driver(request):
    """Each driver, those that hold no values too: what is refused must be refused by all."""
    return open_driver(request.param)
