"""The fixtures of the operations' tests, with CUDA kernels on fibers as the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_fibers.cuda_driver import fiber_driver
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
    return fiber_driver(request.param)
