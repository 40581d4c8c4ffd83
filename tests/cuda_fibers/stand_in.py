"""A pytest plugin: `cuda:0` opens the CUDA driver on the stand-ins for its libraries."""

from __future__ import annotations

import drivers.cuda.cupy_device
import drivers.cuda.planned
from tests.cuda_fibers.cuda_driver import FakeDevice
from tests.cuda_fibers.fake_cupy import FakeCupy


def pytest_configure(config):
    """Put them where CuPy and its device are looked for."""
    drivers.cuda.planned.import_cupy = lambda name: FakeCupy()
    drivers.cuda.cupy_device.CupyDevice = FakeDevice
