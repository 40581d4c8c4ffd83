"""The CUDA driver on stand-ins: as a whole, and for kernels alone."""

from __future__ import annotations

from drivers.cuda.cupy_device import CupyDevice
from drivers.cuda.driver import CudaDriver
from tests.cuda_fibers.device import FiberDevice
from tests.cuda_fibers.fake_cublaslt import FakeCublasLt
from tests.cuda_fibers.fake_cupy import FakeCupy


class FakeDevice(CupyDevice):
    """The device as it is, with a stand-in for the one library that it loads."""

    def __init__(self, cupy, index=0):
        super().__init__(cupy, index, cupy.cubin_of)
        self.fake_cublaslt = FakeCublasLt()

    def cublaslt(self):
        return self.fake_cublaslt


def cuda_driver(order="warp_greedy", **options):
    """The driver on its device through CuPy, as it runs; options are those of FakeCupy."""
    return CudaDriver(FakeDevice(FakeCupy(order, **options)))


def fiber_driver(order, edit=None):
    """The driver for tests of kernels: its arrays are NumPy's and end at a guard (FiberDevice)."""
    return CudaDriver(FiberDevice(order, edit))
