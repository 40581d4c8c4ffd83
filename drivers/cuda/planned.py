"""What is known of a CUDA driver before it is opened, and its opening.

Kernels, libraries and CuPy are imported there alone: a process that opens none is none the slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.cuda.opening import describe_device, device_index, import_cupy
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32

if TYPE_CHECKING:
    from drivers.cuda.driver import CudaDriver

DTYPES = (FLOAT16, BFLOAT16, FLOAT32)
PREFERRED_TOKENS = 16384


class UnopenedCuda:
    """A CUDA driver as a plan knows it: `new_for_clone` opens it, in the process that calls."""

    preferred_tokens = PREFERRED_TOKENS
    dtypes = DTYPES

    def __init__(self, name: str) -> None:
        self.name = name

    def new_for_clone(self) -> CudaDriver:
        """The driver. Raises DriverError where this process does not see the device."""
        return open_cuda(self.name)


def open_cuda(name: str) -> CudaDriver:
    """A driver for `cuda` or `cuda:N`. Raises DriverError saying in one line what is missing."""
    cupy = import_cupy(name)
    from drivers.cuda.cupy_device import open_device
    from drivers.cuda.driver import CudaDriver

    return CudaDriver(open_device(cupy, device_index(name)))


def describe_cuda(name: str) -> str:
    """What a device is, without opening it. Raises DriverError as `open_cuda` does."""
    index = device_index(name)
    return describe_device(import_cupy(name), index)
