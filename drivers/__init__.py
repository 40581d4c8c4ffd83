"""drivers: arrays and kernels. Knows no model, no file and no Ray."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import numpy as np

from drivers.cpu import CpuDriver
from drivers.cpu.native_module import choose_instruction_set, instruction_sets
from drivers.cuda import UnopenedCuda, describe_cuda, device_index, open_cuda
from drivers.errors import DriverError, DtypeError, KernelCompileError, ShapeError
from drivers.null import NullDriver
from drivers.numpy import NumpyDriver
from drivers.protocol import Driver
from drivers.types import BatchInputs, Encoding, Tensor

__all__ = [
    "BatchInputs",
    "Driver",
    "DriverError",
    "DriverPlan",
    "DtypeError",
    "Encoding",
    "KernelCompileError",
    "ShapeError",
    "Tensor",
    "choose_driver",
    "gpus_of",
    "open_driver",
    "plan_driver",
]

logger = logging.getLogger(__name__)

KINDS = ("cuda", "cpu", "numpy", "null")
AUTO_ORDER = ("cuda", "cpu", "numpy")  # `auto` takes the first that this machine does not refuse
WITH_OPTION = ("cuda", "cpu")  # those whose name may say which device or instruction set


class DriverPlan(Protocol):
    """What a run is planned with: a driver of this process, or one that only its workers open."""

    @property
    def name(self) -> str:
        """The name `open_driver` knows it by."""
        ...

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Its storage types, the default first."""
        ...

    def new_for_clone(self) -> Driver[Any]:
        """A driver for a worker, in the worker's process."""
        ...


def choose_driver(name: str = "auto") -> tuple[str, str]:
    """The driver that `name` stands for on this machine, and why, as two strings.

    Raises DriverError for a name this build has no driver for, and where this machine cannot run
    the driver.
    """
    if name == "auto":
        return _choose_best()
    kind, option = _known(name)
    return _full_name(name), "asked for by name" + _details(kind, option)


def open_driver(name: str = "auto") -> Driver[Any]:
    """A new driver: `auto`, `cuda`, `cpu`, `numpy`, or `null`. Choice and reason are logged.

    `cuda` is the first device that this process sees, `cuda:1` the second. `cpu` takes the best
    instruction set of this machine, `cpu:avx2` the one that it names.

    Raises DriverError for a name this build has no driver for, and where this machine cannot run
    the driver; nothing is ever put in its place.
    """
    chosen, reason = choose_driver(name)
    logger.info("driver %s: %s", chosen, reason)
    kind, option = _known(chosen)
    if kind == "cuda":
        return open_cuda(chosen)
    if kind == "cpu":
        return CpuDriver(option)
    return NullDriver() if kind == "null" else NumpyDriver()


def plan_driver(name: str = "auto") -> DriverPlan:
    """As `open_driver`, but a CUDA device is opened by the workers alone.

    The machine that plans a run need not have one, and does not take memory of the one that it has.
    """
    chosen = choose_driver(name)[0] if name == "auto" else name
    return UnopenedCuda(_full_name(chosen)) if gpus_of(chosen) else open_driver(chosen)


def gpus_of(name: str) -> int:
    """GPUs that a driver of that name takes."""
    return int(name.partition(":")[0] == "cuda")


def _known(name: str) -> tuple[str, str | None]:
    """Kind and option of a driver's name. Raises DriverError for a kind that is not there."""
    kind, colon, option = name.partition(":")
    if kind not in KINDS or (colon and kind not in WITH_OPTION):
        have = ", ".join(["auto", *KINDS])
        raise DriverError(f"open_driver: no driver '{name}' in this build, have {have}")
    return kind, option if colon else None


def _full_name(name: str) -> str:
    """The name with the device that it means."""
    return f"cuda:{device_index(name)}" if gpus_of(name) else name


def _choose_best() -> tuple[str, str]:
    """The first of AUTO_ORDER that this machine runs, and why not those before it."""
    refusals = []
    for kind in AUTO_ORDER:
        try:
            reason = "the best driver of this machine" + _details(kind, None)
        except DriverError as error:
            refusals.append(f"; not {kind}: {error}")
        else:
            return _full_name(kind), reason + "".join(refusals)
    raise DriverError("open_driver: no driver" + "".join(refusals))


def _details(kind: str, option: str | None) -> str:
    """What a driver's reason says of its device or instruction set, where it has one."""
    if kind == "cuda":
        return f"; {describe_cuda(kind if option is None else f'{kind}:{option}')}"
    if kind != "cpu":
        return ""
    chosen = choose_instruction_set(option)
    return f"; instruction set {chosen} of {', '.join(instruction_sets())}"
