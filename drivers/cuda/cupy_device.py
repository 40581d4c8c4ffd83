"""One CUDA device through CuPy: memory, copies, launches, and what becomes of its errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from drivers.cuda import cublaslt
from drivers.cuda.build import cubin_of
from drivers.cuda.device import Array
from drivers.cuda.device_memory import DeviceMemory
from drivers.cuda.kernel_modules import CubinOf, KernelModules
from drivers.cuda.launch import Launch
from drivers.cuda.opening import device_facts, require_device
from drivers.cuda.pinned import PinnedSlots
from drivers.errors import DeviceLost, DriverError, KernelError, OutOfDeviceMemory

NULL = np.uint64(0)  # CuPy would take None for an argument that is not there
NO_MEMORY = 2  # cudaErrorMemoryAllocation, and CUDA_ERROR_OUT_OF_MEMORY
ONCE_MORE = "run it again with CUDA_LAUNCH_BLOCKING=1 to see which launch it was"


class CupyDevice:
    """A `drivers.cuda.device.Device`. Everything runs in order on one stream of its own.

    One thread at a time uses it, any thread. After an error that the device does not recover from
    every call raises DeviceLost.
    """

    def __init__(self, cupy: Any, index: int, cubin_of: CubinOf = cubin_of) -> None:
        """cupy: the module. Raises DriverError where this process does not see the device."""
        require_device(cupy, index)
        self.name = f"cuda:{index}"
        self._cupy = cupy
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        self._lost: str | None = None
        self._gpu = cupy.cuda.Device(index)
        with self._checked("cannot be opened"):
            self._gpu.use()
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self._slots = PinnedSlots(cupy, self.stream)
            self.memory = DeviceMemory(cupy, self._gpu)
            arch = f"sm_{self._gpu.compute_capability}"
            self.modules = KernelModules(cupy, arch, cubin_of)

    def load_kernels(self, dtype: np.dtype[Any]) -> None:
        """As in BatchDevice."""
        with self._checked(f"kernels for {dtype}"):
            self.modules.load_all(np.dtype(dtype))

    def open_arena(self) -> None:
        """Tensors that are made from here on lie in the arena. Raises OutOfDeviceMemory."""
        with self._checked("the memory of a batch"):
            self.memory.open_arena()

    def close_arena(self) -> None:
        """Tensors that are made from here on have memory of their own."""
        self.memory.close_arena()

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As in Device; in the arena while it is open. Raises OutOfDeviceMemory."""
        try:
            self._enter()
            return self.memory.new(shape, np.dtype(dtype))
        except (*self._errors, self._cupy.cuda.memory.OutOfMemoryError) as error:
            self._fail(f"a tensor {np.dtype(dtype)} {shape}", error)

    def upload(self, array: NDArray[Any]) -> Array:
        """As in Device. The host array may change afterwards."""
        out = self.new(array.shape, array.dtype)
        with self._checked(f"upload of {array.dtype} {array.shape}"):
            source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._slots.send(source, out.data.ptr)
        return out

    def download(self, x: Array) -> NDArray[Any]:
        """As in Device."""
        out = np.empty(x.shape, x.dtype)
        with self._checked(f"download of {x.dtype} {x.shape}"):
            self._slots.fetch(x.data.ptr, out.reshape(-1).view(np.uint8))
        return out

    def launch(
        self, theme: str, dtype: np.dtype[Any], launch: Launch, arguments: tuple[Any, ...]
    ) -> None:
        """As in Device. Raises KernelError, or DeviceLost, with the kernel and its arguments.

        An error of the kernel's own run comes with a later call.
        """
        try:
            self._enter()
            kernel = self.modules.kernel(theme, dtype, launch.kernel, launch.shared_bytes)
            given = tuple(NULL if argument is None else argument for argument in arguments)
            with self.stream:
                kernel(launch.grid, launch.block, given, shared_mem=launch.shared_bytes)
        except self._errors as error:
            self._fail(f"{theme} for {dtype}: {launch}({_described(arguments)})", error)

    @property
    def stream_address(self) -> int:
        """As in Device. Who asks is about to launch: this becomes the device of its thread."""
        self._enter()
        address: int = self.stream.ptr
        return address

    def address(self, x: Array) -> int:
        """As in Device."""
        address: int = x.data.ptr
        return address

    def cublaslt(self) -> Any:
        """As in Device. Raises DriverError where there is no such library."""
        return cublaslt.load()

    def synchronize(self) -> None:
        """Wait until everything is done that was asked for."""
        with self._checked("work that was launched before"):
            self.stream.synchronize()

    def mark(self) -> Any:
        """As in BatchDevice: an event of CUDA's."""
        with self._checked("a mark in time"):
            event = self._cupy.cuda.Event()
            event.record(self.stream)
        return event

    def milliseconds(self, start: Any, end: Any) -> float:
        """As in BatchDevice."""
        with self._checked("the time between two marks"):
            end.synchronize()
            took: float = self._cupy.cuda.get_elapsed_time(start, end)
        return took

    def facts(self) -> dict[str, Any]:
        """As in BatchDevice."""
        with self._checked("its properties"):
            return device_facts(self._cupy, self._gpu.id)

    def _enter(self) -> None:
        """Make this the device of the thread that calls, unless it is lost."""
        if self._lost is not None:
            raise DeviceLost(self._lost)
        self._gpu.use()

    @contextmanager
    def _checked(self, what: str) -> Iterator[None]:
        """CuPy's errors in the block as ours, naming `what`."""
        try:
            self._enter()
            yield
        except (*self._errors, self._cupy.cuda.memory.OutOfMemoryError) as error:
            self._fail(what, error)

    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Raise what a CUDA error means: no memory, a call that was refused, or a lost device."""
        said = f"{self.name}: {what}: {error}"
        if isinstance(error, MemoryError) or getattr(error, "status", None) == NO_MEMORY:
            self.memory.forget_peak()
            raise OutOfDeviceMemory(f"{said}; {self.memory.described()}") from error
        try:
            self.stream.synchronize()
        except self._errors:
            self._lost = f"{said}; the device is lost to this process, which must be replaced"
            raise DeviceLost(f"{self._lost}; {ONCE_MORE}") from error
        raise KernelError(said) from error


def _described(arguments: Sequence[Any]) -> str:
    """The arguments of a launch: arrays by dtype and shape, the rest by value."""
    return ", ".join(
        "null" if x is None else f"{x.dtype} {x.shape}" if getattr(x, "shape", ()) else str(x)
        for x in arguments
    )


def open_device(cupy: Any, index: int) -> CupyDevice:
    """A device of a CuPy module. Raises DriverError."""
    try:
        return CupyDevice(cupy, index)
    except (KernelError, DeviceLost) as error:
        raise DriverError(str(error)) from error
