"""drivers: arrays and kernels. Knows no model, no file and no Ray."""

from __future__ import annotations

import logging
from typing import Any

from drivers.cpu import CpuDriver
from drivers.cpu.native_module import choose_instruction_set, instruction_sets
from drivers.errors import DriverError, DtypeError, KernelCompileError, ShapeError
from drivers.null import NullDriver
from drivers.numpy import NumpyDriver
from drivers.protocol import Driver
from drivers.types import BatchInputs, Encoding, Tensor

__all__ = [
    "BatchInputs",
    "Driver",
    "DriverError",
    "DtypeError",
    "Encoding",
    "KernelCompileError",
    "ShapeError",
    "Tensor",
    "choose_driver",
    "open_driver",
]

logger = logging.getLogger(__name__)

KINDS = ("cpu", "numpy", "null")
AUTO_ORDER = ("cpu", "numpy")  # what `auto` takes the first of that this machine does not refuse


def choose_driver(name: str = "auto") -> tuple[str, str]:
    """The driver that `name` stands for on this machine, and why, as two strings.

    Raises DriverError for a name this build has no driver for, and where this machine cannot run
    the driver.
    """
    if name == "auto":
        return _choose_best()
    kind, colon, option = name.partition(":")
    if kind not in KINDS or (colon and kind != "cpu"):
        have = ", ".join(["auto", *KINDS])
        raise DriverError(f"open_driver: no driver '{name}' in this build, have {have}")
    return name, "asked for by name" + _with_instruction_set(kind, option if colon else None)


def open_driver(name: str = "auto") -> Driver[Any]:
    """A new driver: `auto`, `cpu`, `numpy`, or `null`. The choice and its reason are logged.

    `cpu` takes the best instruction set of this machine, `cpu:avx2` the one that it names.

    Raises DriverError for a name this build has no driver for, and where this machine cannot run
    the driver; nothing is ever put in its place.
    """
    chosen, reason = choose_driver(name)
    logger.info("driver %s: %s", chosen, reason)
    kind, colon, option = chosen.partition(":")
    if kind == "cpu":
        return CpuDriver(option if colon else None)
    return NullDriver() if kind == "null" else NumpyDriver()


def _choose_best() -> tuple[str, str]:
    """The first of AUTO_ORDER that this machine runs, and why not those before it."""
    refusals = []
    for kind in AUTO_ORDER:
        try:
            reason = "the best driver of this machine" + _with_instruction_set(kind, None)
        except DriverError as error:
            refusals.append(f"; not {kind}: {error}")
        else:
            return kind, reason + "".join(refusals)
    raise DriverError("open_driver: no driver" + "".join(refusals))


def _with_instruction_set(kind: str, option: str | None) -> str:
    """What a driver's reason says of the instruction set, where the driver has one."""
    if kind != "cpu":
        return ""
    chosen = choose_instruction_set(option)
    return f"; instruction set {chosen} of {', '.join(instruction_sets())}"
