"""CpuDriver: NumPy's primitives, and kernels of one instruction set."""

from __future__ import annotations

from drivers.cpu.native_module import open_kernels
from drivers.numpy import NumpyDriver


class CpuDriver(NumpyDriver):
    """The NumPy driver with what is worth it in native code.

    instruction_set: one of those that this processor runs, None for the best. Raises DriverError
    where it cannot run it or there is no native module.
    """

    name = "cpu"

    def __init__(self, instruction_set: str | None = None) -> None:
        super().__init__()
        self.kernels = open_kernels(instruction_set)
        self._asked_for = instruction_set
        if instruction_set is not None:
            self.name = f"cpu:{instruction_set}"

    @property
    def instruction_set(self) -> str:
        """The instruction set that the kernels are of."""
        return self.kernels.name

    def new_for_clone(self) -> CpuDriver:
        return CpuDriver(self._asked_for)
