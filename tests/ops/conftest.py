"""Fixtures of the operations' tests."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import DRIVERS, opened
from tests.cuda_fibers.cuda_driver import cuda_driver

CUDA = pytest.param("cuda", marks=pytest.mark.slow)  # its kernels run on fibers


def made(name):
    return cuda_driver() if name == "cuda" else opened(name)


@pytest.fixture(params=[*DRIVERS, CUDA])
def driver(request):
    """Each driver that computes; a library that CUDA calls may not have refused any call."""
    driver = made(request.param)
    yield driver
    if request.param == "cuda":
        assert driver.device.fake_cublaslt.refusals == []


@pytest.fixture(params=[np.float32, np.float16], ids=["f32", "f16"])
def dtype(request):
    """Each storage type that a driver has."""
    return np.dtype(request.param)


@pytest.fixture(params=[*DRIVERS, "null", CUDA])
def any_driver(request):
    """Each driver, those that hold no values too: what is refused must be refused by all."""
    return made(request.param)
