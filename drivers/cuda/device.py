"""What the CUDA driver asks of its device: memory, copies and launches."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from drivers.cuda.launch import Launch

Array: TypeAlias = Any
"""An array on the device, of CuPy's interface: shape, dtype, flags, reshape, slices as views."""


class Device(Protocol):
    """One device, with a stream that all of this runs on in order."""

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for an array, contiguous, on a boundary of 256 bytes, its values undefined.

        Raises OutOfDeviceMemory where there is none left.
        """
        ...

    def upload(self, array: NDArray[Any]) -> Array:
        """A copy of a host array on the device."""
        ...

    def download(self, x: Array) -> NDArray[Any]:
        """A copy of the array on the host, after everything that was launched before."""
        ...

    def launch(
        self, theme: str, dtype: np.dtype[Any], launch: Launch, arguments: tuple[Any, ...]
    ) -> None:
        """One launch of a kernel of kernels/THEME.cu as it is built for a storage type.

        An argument is a contiguous array, None for a null pointer, or a NumPy scalar of exactly the
        parameter's type: np.int32, np.int64, np.float32.
        """
        ...

    @property
    def stream_address(self) -> int:
        """The stream, a cudaStream_t, 0 for the default one."""
        ...

    def address(self, x: Array) -> int:
        """Where the first value of an array lies on the device."""
        ...

    def cublaslt(self) -> Any:
        """libcublasLt for `drivers.cuda.cublaslt.CublasLt`: what its `load` gives."""
        ...


class BatchDevice(Device, Protocol):
    """A device that a driver owns: with a name, kernels to load ahead, and memory of a batch."""

    @property
    def name(self) -> str:
        """`cuda:0` and the like."""
        ...

    def load_kernels(self, dtype: np.dtype[Any]) -> None:
        """Have every kernel for a storage type ready. Raises KernelCompileError."""
        ...

    def open_arena(self) -> None:
        """What `new` and `upload` give from here on lies in one block that batches share.

        It is recycled as soon as nothing holds it. Raises OutOfDeviceMemory.
        """
        ...

    def close_arena(self) -> None:
        """What `new` and `upload` give from here on has memory of its own."""
        ...

    def synchronize(self) -> None:
        """Wait until everything is done that was launched before. Raises what went wrong in it."""
        ...

    def mark(self) -> Any:
        """The moment at which everything is done that was launched before, for `milliseconds`."""
        ...

    def milliseconds(self, start: Any, end: Any) -> float:
        """The time between two marks, on the device's clock, once both have passed."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a measurement must say of the device: its name, and versions."""
        ...
