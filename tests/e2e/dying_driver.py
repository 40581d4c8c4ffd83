"""A driver whose process dies at a marked text. Workers import it by its name."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drivers.errors import DeviceLost
from drivers.numpy import NumpyDriver
from tests.models.folders import IDS

MARK = "中"  # a token of its own in the tiny model's vocabulary


class DyingDriver(NumpyDriver):
    """Kills its own process whenever a batch holds MARK, until it has died `deaths` times.

    Each death leaves a file in `folder`, so that the workers of a run share one count.
    """

    def __init__(self, folder: Path, deaths: int) -> None:
        super().__init__()
        self.folder = folder
        self.deaths = deaths

    def new_for_clone(self) -> DyingDriver:
        return DyingDriver(self.folder, self.deaths)

    def embed(self, batch: Any, tables: Sequence[Any], norm: Any = None) -> Any:
        if (np.asarray(batch.input_ids) == IDS[MARK]).any() and self._may_die():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(batch, tables, norm)

    def _may_die(self) -> bool:
        for number in range(self.deaths):
            try:
                (self.folder / f"death-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


class LostDriver(DyingDriver):
    """Loses its device at the marked text, and refuses everything from then on."""

    lost = False

    def new_for_clone(self) -> LostDriver:
        return LostDriver(self.folder, self.deaths)

    def embed(self, batch: Any, tables: Sequence[Any], norm: Any = None) -> Any:
        marked = (np.asarray(batch.input_ids) == IDS[MARK]).any()
        if self.lost or (marked and self._may_die()):
            self.lost = True
            raise DeviceLost("cuda:0: the device is lost")
        return NumpyDriver.embed(self, batch, tables, norm)


class FailingDriver(NumpyDriver):
    """Raises an error that is none of ours whenever a batch holds MARK."""

    def new_for_clone(self) -> FailingDriver:
        return FailingDriver()

    def embed(self, batch: Any, tables: Sequence[Any], norm: Any = None) -> Any:
        if (np.asarray(batch.input_ids) == IDS[MARK]).any():
            raise ArithmeticError("the marked text was met")
        return super().embed(batch, tables, norm)
