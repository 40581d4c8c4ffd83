"""The native driver: the forward operations in C++, by instruction set."""

from drivers.cpu.driver import CpuDriver

__all__ = ["CpuDriver"]
