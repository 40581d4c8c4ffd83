"""Times of work on a device: by its own marks, while the host is ahead of it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_driver import MeasuredCuda

from drivers.types import WeightRole

WARM_UPS = 3
REPEATS = (1, 300)  # of a call in one measurement, the least and the most
AHEAD = 1.5  # times as long as the host takes to ask for the work


class DeviceClock:
    """Milliseconds of a call on the device.

    The work is asked for while the device is busy with products, so that the time from the first
    mark to the last has no wait for the host in it.
    """

    def __init__(self, driver: MeasuredCuda, shape: tuple[int, int, int], seconds: float) -> None:
        """shape: rows, depth and columns of those products. seconds: of a measurement, about."""
        self._driver = driver
        self._seconds = seconds
        rows, depth, cols = shape
        values = Values(driver)
        self._operands = values.tokens(rows, depth), values.weight(cols, depth)
        self._busy_seconds = 1e-3 * statistics.median(self._once(self._product) for _ in range(3))

    def keep_busy(self, seconds: float) -> None:
        """Give the device work for at least so long."""
        for _ in range(math.ceil(seconds / self._busy_seconds) + 1):
            self.scoped(self._product)

    def milliseconds(self, call: Callable[[], object], rounds: int) -> list[float]:
        """Of one call, by round."""
        for _ in range(WARM_UPS):
            self.scoped(call)
        self._driver.clock.synchronize()
        started = time.perf_counter()
        self.scoped(call)
        asked = time.perf_counter() - started
        taken = 1e-3 * self._once(call)
        least, most = REPEATS
        repeats = min(most, max(least, math.ceil(self._seconds / max(taken, asked / AHEAD))))
        found = []
        for _ in range(rounds):
            self.keep_busy(AHEAD * asked * repeats)
            start = self._driver.clock.mark()
            for _ in range(repeats):
                self.scoped(call)
            end = self._driver.clock.mark()
            found.append(self._driver.clock.milliseconds(start, end) / repeats)
        return found

    def scoped(self, call: Callable[[], object]) -> None:
        """The call, on memory that the one before it used."""
        cursor = self._driver.save_pool_cursor()
        call()
        self._driver.restore_pool_cursor(cursor)

    def _product(self) -> object:
        return self._driver.linear(*self._operands)

    def _once(self, call: Callable[[], object]) -> float:
        self.scoped(call)
        start = self._driver.clock.mark()
        self.scoped(call)
        return self._driver.clock.milliseconds(start, self._driver.clock.mark())


class Values:
    """Random float16 tensors on the device; a large one repeats a block."""

    BLOCK = 1 << 22

    def __init__(self, driver: MeasuredCuda) -> None:
        self._driver = driver
        rng = np.random.default_rng(0)
        self._block = rng.standard_normal(self.BLOCK, np.float32).astype(np.float16)

    def tokens(self, rows: int, cols: int) -> Any:
        """(rows, cols), around 0, as wide as 1."""
        return self._driver.from_host(np.resize(self._block, (rows, cols)))

    def weight(self, rows: int, depth: int, role: WeightRole = "linear") -> Any:
        """A layer's (rows, depth), which leaves tokens as wide as they are, or a table."""
        values = np.resize(self._block, (rows, depth)) * np.float16(depth**-0.5)
        return self._driver.pack(values, role, np.float16)

    def vector(self, size: int) -> Any:
        """(size,)."""
        return self._driver.pack(self._block[:size], "vector", np.float16)
