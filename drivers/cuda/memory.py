"""Memory of the CUDA driver: zeros, copies, casts, and the way to and from the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from drivers import shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launch import Launch
from drivers.cuda.launches import memory as launches
from drivers.cuda.storage import require_storage, storage_type
from drivers.dtypes import FLOAT32


class CudaMemory(CudaOps):
    """Tensors made, copied and cast: `drivers.primitives.memory.Memory` but a batch's life."""

    def alloc_zeros(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        out = self._empty(shape, np.dtype(dtype))
        self._move(launches.fill_zeros(size_bytes=_bytes(out)), out, np.int64(_bytes(out)))
        return out

    def clone_tensor(self, x: Array) -> Array:
        return self._copy(x, self._empty(x.shape, x.dtype))

    def cast(self, x: Array, dtype: DTypeLike, *, out: Array | None = None) -> Array:
        require_storage("cast", x)
        want = storage_type("cast", dtype)
        out = self._out("cast", out, x.shape, want, only=want)
        if x.dtype == want:
            return self._copy(x, out)
        launch = launches.cast(stored=x.dtype, asked=want, count=x.size)
        self._move(launch, out, x, np.int64(x.size))
        return out

    def from_host(self, array: NDArray[Any]) -> Array:
        return self.device.upload(array)

    def to_host(self, x: Array) -> NDArray[Any]:
        return self.device.download(x)

    def matrix_at(self, x: Array, index: int) -> Array:
        shapes.matrix_at("matrix_at", x.shape, index)
        return x[index]

    def _copy(self, x: Array, out: Array) -> Array:
        """`out` with the bytes of `x`."""
        self._move(launches.copy_bytes(size_bytes=_bytes(x)), out, x, np.int64(_bytes(x)))
        return out

    def _move(self, launch: Launch, out: Array, *arguments: Any) -> None:
        """A launch of the theme's one build, where there is anything to write."""
        if out.size:
            self._launch("memory", FLOAT32, launch, out, *arguments)


def _bytes(x: Array) -> int:
    """The size of a tensor in bytes."""
    size: int = x.size * x.dtype.itemsize
    return size
