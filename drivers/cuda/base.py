"""What the themes of the CUDA driver share: launches, and where results are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from drivers.cuda.device import Array, Device
from drivers.cuda.launch import STORAGE, Launch
from drivers.cuda.storage import NAMES
from drivers.results import Results


class CudaOps(Results[Array]):
    """Base of the themes. Tensors are contiguous arrays on the device.

    `launches_total` counts launches.
    """

    _storage = tuple(STORAGE)
    _storage_names = f"one of {NAMES}"

    def __init__(self, device: Device) -> None:
        self.device = device
        self.launches_total = 0

    def _launch(self, theme: str, dtype: np.dtype[Any], launch: Launch, *arguments: Any) -> None:
        """A launch of kernels/THEME.cu, built for that storage type (`Device.launch`)."""
        self.launches_total += 1
        self.device.launch(theme, np.dtype(dtype), launch, arguments)

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.device.new(shape, np.dtype(dtype))
