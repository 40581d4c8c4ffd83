"""One BLAS thread per driver while batches run, so that n clones use n threads and no more."""

from __future__ import annotations

import threading
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController

from drivers.errors import DriverError


class BlasThreads:
    """Counts open batches of all drivers of the process: the first caps BLAS at one thread, the
    last gives the process its own setting back.

    BLAS pools are process-wide, hence one counter. A BLAS built on OpenMP keeps its setting per
    thread instead; there only the thread that opened the first batch is capped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open_batches = 0
        self._controller: ThreadpoolController | None = None
        self._limiter: Any = None

    def acquire(self) -> None:
        """Open a batch."""
        with self._lock:
            if self._open_batches == 0:
                if self._controller is None:
                    self._controller = ThreadpoolController()
                _release_control()
                self._limiter = self._controller.limit(limits=1, user_api="blas")
                _release_control()
            self._open_batches += 1

    def release(self) -> None:
        """Close a batch. Raises DriverError where none is open."""
        with self._lock:
            if self._open_batches == 0:
                raise DriverError("end_batch: no batch is open")
            self._open_batches -= 1
            if self._open_batches == 0:
                _release_control()
                self._limiter.restore_original_limits()
                self._limiter = None
                _release_control()


def _release_control() -> None:
    """Let any thread set the limit next: threadpoolctl >= 3.7 obeys one living thread only, while
    here the lock already orders them."""
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


BLAS_THREADS = BlasThreads()
