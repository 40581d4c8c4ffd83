"""Native kernels of rayvec's cpu driver, by instruction set."""

from types import ModuleType

def abi_version() -> int:
    """The version of this module's functions; drivers/cpu/native_module.py wants the same."""

def instruction_sets() -> list[str]:
    """Names of the instruction sets that this processor runs, best first, for tests last."""

class Kernels:
    """The kernels of one instruction set."""

    @property
    def name(self) -> str:
        """The instruction set's name."""
    @property
    def lanes(self) -> int:
        """float32 values in one vector."""

def kernels(name: str) -> Kernels:
    """The kernels of that instruction set. Raises ValueError, with the names there are."""

testing: ModuleType
