"""The fixtures of the operations' tests, with CUDA kernels on fibers as the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_fibers.driver import FiberDriver
from tests.ops.conftest import dtype  # noqa: F401


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """All tests here are slow ones: they need a C++ compiler, which `make test` does not."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["shuffled", "warp_greedy"])
def driver(request):
    """The driver of kernels, in the thread orders that forgive least."""
    return FiberDriver(request.param)


@pytest.fixture
def any_driver():
    """The same driver, for what is refused before any thread runs."""
    return FiberDriver("shuffled")


@pytest.fixture
def kernels_ran(driver):
    """Something in the test was launched."""
    yield
    assert driver.launches_total > 0


@pytest.fixture
def the_kernel_ran(driver):
    """Nothing in the test may have been computed by NumPy in the kernel's place."""
    yield
    assert driver.launches_total > 0


@pytest.fixture
def something_was_launched(driver):
    """The test's operations are those of the kernels."""
    yield
    assert driver.launches_total > 0
