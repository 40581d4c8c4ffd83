"""What a driver can refuse. Every message says what was got, what was wanted, and where."""

from __future__ import annotations


class DriverError(Exception):
    """A driver cannot do what was asked of it."""


class ShapeError(DriverError):
    """Tensors whose shapes do not fit each other or the operation."""


class DtypeError(DriverError):
    """A storage type that the operation, or the driver, does not have."""


class KernelCompileError(DriverError):
    """A CUDA kernel that does not compile, or no compiler for it."""


class OutOfDeviceMemory(DriverError):
    """The device has no memory left for a tensor; what stands there is as it was."""


class KernelError(DriverError):
    """The device refused a call, such as a launch; later work is not affected."""


class DeviceLost(DriverError):
    """The device failed so that this process cannot use it again: the process must be replaced."""
