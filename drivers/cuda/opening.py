"""CuPy, and the devices that this process sees: what is missing is said in one line."""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from drivers.errors import DriverError

OLDEST = 80  # Ampere: bfloat16, and copies into shared memory that run beside the arithmetic
INSTALL = "install it with pip install 'rayvec[cuda12]', or 'rayvec[cuda13]' for CUDA 13"


def device_index(name: str) -> int:
    """The device that `cuda` or `cuda:N` names. Raises DriverError for another spelling."""
    kind, colon, option = name.partition(":")
    if kind == "cuda" and not colon:
        return 0
    if kind != "cuda" or not option.isascii() or not option.isdigit():
        raise DriverError(f"open_driver: no device '{name}', wanted cuda or cuda:0, cuda:1, ...")
    return int(option)


def import_cupy(name: str) -> Any:
    """CuPy, imported only where an NVIDIA driver is there for it: without, this takes no time.

    name: the driver's, for the message. Raises DriverError where something is missing.
    """
    if find_spec("cupy") is None:
        raise DriverError(f"{name}: CuPy is not installed; {INSTALL}")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DriverError(
            f"{name}: no NVIDIA driver on this machine (libcuda.so.1 is not found)"
        ) from None
    try:
        return import_module("cupy")
    except ImportError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")]
        why = lines[0] if lines else type(error).__name__
        raise DriverError(f"{name}: CuPy cannot be imported ({why}); {INSTALL}") from error


def describe_device(cupy: Any, index: int) -> str:
    """A device's name, its memory and CuPy's version. Raises DriverError as `require_device`."""
    require_device(cupy, index)
    found = cupy.cuda.runtime.getDeviceProperties(index)
    name, gigabytes = found["name"].decode(), found["totalGlobalMem"] / 1e9
    return f"{name}, {gigabytes:.0f} GB, CuPy {cupy.__version__}"


def device_facts(cupy: Any, index: int) -> dict[str, Any]:
    """What a measurement on a device must say of it: name, size, and versions."""
    runtime = cupy.cuda.runtime
    found = runtime.getDeviceProperties(index)
    return {
        "name": found["name"].decode(),
        "memory_bytes": int(found["totalGlobalMem"]),
        "multiprocessors": int(found["multiProcessorCount"]),
        "compute_capability": str(cupy.cuda.Device(index).compute_capability),
        "cupy": str(cupy.__version__),
        "cuda_of_driver": _cuda_version(runtime.driverGetVersion()),
        "cuda_runtime": _cuda_version(runtime.runtimeGetVersion()),
    }


def _cuda_version(number: int) -> str:
    """12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def require_device(cupy: Any, index: int) -> None:
    """Refuse a device that this process does not see, or that is too old. Raises DriverError."""
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DriverError(f"cuda:{index}: no device is visible ({error}){_visible()}") from error
    if index >= count:
        seen = "no device" if not count else f"{count} device{'s' if count > 1 else ''}, from 0"
        raise DriverError(f"cuda:{index}: this process sees {seen}{_visible()}")
    capability = int(cupy.cuda.Device(index).compute_capability)
    if capability < OLDEST:
        raise DriverError(
            f"cuda:{index}: compute capability {capability / 10}, wanted {OLDEST / 10} or later"
        )


def _visible() -> str:
    """What hides devices from a process."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    value = "is not set" if said is None else f"is '{said}'"
    return f"; CUDA_VISIBLE_DEVICES {value}, and a Ray actor sees a device only with num_gpus=1"
