"""drivers: arrays and kernels. Knows no model, no file and no Ray."""

from __future__ import annotations

import logging
from typing import Any

from drivers.errors import DriverError, DtypeError, ShapeError
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
    "ShapeError",
    "Tensor",
    "choose_driver",
    "open_driver",
]

logger = logging.getLogger(__name__)

DRIVERS: dict[str, type[NumpyDriver] | type[NullDriver]] = {
    "numpy": NumpyDriver,
    "null": NullDriver,
}


def choose_driver(name: str = "auto") -> tuple[str, str]:
    """The driver that `name` stands for on this machine, and why, as two strings.

    Raises DriverError for a name this build has no driver for.
    """
    if name == "auto":
        return "numpy", "the only driver of this build that computes"
    if name not in DRIVERS:
        have = ", ".join(["auto", *DRIVERS])
        raise DriverError(f"open_driver: no driver '{name}' in this build, have {have}")
    return name, "asked for by name"


def open_driver(name: str = "auto") -> Driver[Any]:
    """A new driver: `auto`, `numpy`, or `null`. The choice and its reason are logged.

    Raises DriverError for a name this build has no driver for; nothing is ever put in its place.
    """
    chosen, reason = choose_driver(name)
    logger.info("driver %s: %s", chosen, reason)
    return DRIVERS[chosen]()
