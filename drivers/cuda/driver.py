"""CudaDriver: all themes of operations on one CUDA device."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from drivers.cuda.attention import CudaAttention
from drivers.cuda.attention_steps import CudaSoftmax
from drivers.cuda.banded import CudaBanded
from drivers.cuda.batching import CudaBatching
from drivers.cuda.device import Array, BatchDevice
from drivers.cuda.lookups import CudaLookups
from drivers.cuda.memory import CudaMemory
from drivers.cuda.norms import CudaNorms
from drivers.cuda.planned import DTYPES, PREFERRED_TOKENS, open_cuda
from drivers.cuda.pooling import CudaPooling
from drivers.cuda.products import CudaProducts
from drivers.cuda.rotary import CudaRotary
from drivers.dtypes import FLOAT16, FLOAT32, INT32
from drivers.errors import DriverError
from drivers.types import WeightRole

FLOAT16_LARGEST = 65504.0


class CudaDriver(
    CudaMemory,
    CudaBatching,
    CudaProducts,
    CudaNorms,
    CudaLookups,
    CudaPooling,
    CudaAttention,
    CudaSoftmax,
    CudaBanded,
    CudaRotary,
):
    """Every operation as kernels of one device: float16, bfloat16 or float32 storage, float32
    arithmetic.

    Tensors of a batch, and of a pool scope, lie in one block that batches share; what is loaded
    outside has memory of its own. One thread at a time uses the driver. A device has one driver.
    """

    name = "cuda:0"
    preferred_tokens = PREFERRED_TOKENS
    dtypes: tuple[np.dtype[Any], ...] = DTYPES

    def __init__(self, device: BatchDevice) -> None:
        super().__init__(device)
        self.name = device.name
        self._owned = device
        self._loaded: set[np.dtype[Any]] = set()
        self._scopes = 0
        self._batch_open = False

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return open_cuda, (self.name,)  # where it arrives it opens the device of that name

    def new_for_clone(self) -> NoReturn:
        raise DriverError(
            f"{self.name}: a device has one driver and runs one batch at a time: "
            "wanted 1 thread, or a worker for each device"
        )

    # ---- weights

    def pack(self, weight: NDArray[Any], role: WeightRole, dtype: DTypeLike) -> Array:
        want = np.dtype(dtype)
        largest = float(np.maximum(weight.max(initial=0), -weight.min(initial=0)))
        if not np.isfinite(largest):
            raise DriverError(
                f"pack: a weight of shape {weight.shape} has values beyond all bounds"
            )
        if want == FLOAT16 and largest > FLOAT16_LARGEST:
            raise DriverError(
                f"pack: a weight of shape {weight.shape} has a value of size {largest:g}, beyond "
                "float16: wanted dtype bfloat16 or float32"
            )
        packed = super().pack(weight, role, want)
        self._load_kernels(want)
        return packed

    def _load_kernels(self, dtype: np.dtype[Any]) -> None:
        """Those for a storage type, and for what is float32 whatever the storage."""
        for needed in (dtype, FLOAT32):
            if needed not in self._loaded:
                self._owned.load_kernels(needed)
                self._loaded.add(needed)

    # ---- batches

    def _upload_for_batch(self, array: NDArray[Any]) -> Array:
        out = super()._upload_for_batch(array)
        if array.dtype == INT32:
            self._remember_ids(out, array)
        return out

    # ---- a batch's life

    def begin_batch(self) -> None:
        self._owned.open_arena()
        self._batch_open = True

    def end_batch(self) -> None:
        if not self._batch_open:
            raise DriverError("end_batch: no batch is open")
        self._batch_open = False
        self._scopes = 0
        self._owned.close_arena()
        self._owned.synchronize()

    def flush_batch(self) -> None:
        return  # a launch is on its way when the call returns

    def segment_encoder(self) -> None:
        return  # nothing is recorded

    def save_pool_cursor(self) -> int:
        if not self._scopes and not self._batch_open:
            self._owned.open_arena()
        self._scopes += 1
        return self._scopes - 1

    def restore_pool_cursor(self, saved: int) -> None:
        if not self._scopes or self._scopes - 1 != saved:
            have = f"the last saved is {self._scopes - 1}" if self._scopes else "none is saved"
            raise DriverError(f"restore_pool_cursor: cursor {saved}, but {have}")
        self._scopes -= 1
        if not self._scopes and not self._batch_open:
            self._owned.close_arena()
