"""The compiled module `rayvec_native`: loaded and checked, or refused with what to do about it.

It is a module of its own, outside `drivers`, so that a source tree which goes before the installed
packages, as a job's working_dir does, still finds it. That tree may be of another release than the
module, hence the version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from drivers.errors import DriverError

if TYPE_CHECKING:
    from rayvec_native import Kernels

MODULE = "rayvec_native"
ABI_VERSION = 3  # raised together with the one in native/module.cpp


def native_module() -> Any:
    """The module, of the version that this source tree wants.

    Raises DriverError where it is not installed, cannot be loaded or is of another version.
    """
    try:
        module = importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        if error.name != MODULE:
            raise
        raise DriverError(
            f"the native module {MODULE} is not installed: rayvec was installed where no C++ "
            "compiler or no Python headers were found; install g++ and python3-dev, then rayvec "
            "again"
        ) from None
    except ImportError as error:
        raise DriverError(f"the native module {MODULE} cannot be loaded: {error}") from error
    found = module.abi_version() if hasattr(module, "abi_version") else "none"
    if found != ABI_VERSION:
        raise DriverError(
            f"the native module {module.__file__} has ABI version {found}, this rayvec wants "
            f"{ABI_VERSION}: install rayvec again, from the same source"
        )
    return module


def instruction_sets() -> tuple[str, ...]:
    """What this processor can run, best first; the emulated tiles, which are for tests, last.

    Raises DriverError where there is no native module.
    """
    return tuple(native_module().instruction_sets())


def choose_instruction_set(name: str | None = None) -> str:
    """That instruction set, or the best of this processor.

    Raises DriverError where this processor cannot run it, and where there is no native module.
    """
    have = instruction_sets()
    if name is None:
        return have[0]
    if name not in have:
        raise DriverError(f"cpu: no instruction set '{name}' here, have {', '.join(have)}")
    return name


def open_kernels(name: str | None = None) -> Kernels:
    """The kernels of that instruction set, or of the best one; raises as its choice does."""
    kernels: Kernels = native_module().kernels(choose_instruction_set(name))
    return kernels
