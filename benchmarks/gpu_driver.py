"""The CUDA driver with what a benchmark asks beside it: operations, and each launch's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from drivers.cuda.device import Array, BatchDevice
from drivers.cuda.driver import CudaDriver
from drivers.cuda.launch import Launch
from drivers.types import BatchInputs


class Timed(NamedTuple):
    """One launch: its kernel, or its product's shape, and how long it took."""

    kernel: str
    milliseconds: float


class MeasuredCuda(CudaDriver):
    """`flops_total` counts of attention what real tokens need, however it is computed."""

    def __init__(self, device: BatchDevice) -> None:
        super().__init__(device)
        self._product_of_library: Callable[..., None] = self._matmul
        setattr(self, "_matmul", self._timed_product)  # noqa: B010, in the place of an object
        self._marks: list[tuple[str, Any, Any]] | None = None
        self._keep_busy: Callable[[], None] | None = None

    @property
    def clock(self) -> BatchDevice:
        """The device, whose marks are its clock."""
        return self._owned

    @contextmanager
    def timing(self, keep_busy: Callable[[], None]) -> Iterator[list[Timed]]:
        """Every launch in the block; the list is filled when it ends.

        keep_busy: gives the device so much to do before the first of them that it does not wait for
        the host between them: that wait would count as the launch's.
        """
        self._marks, self._keep_busy = [], keep_busy
        found: list[Timed] = []
        try:
            yield found
        finally:
            marks, self._marks = self._marks, None
        found += [Timed(name, self._owned.milliseconds(a, b)) for name, a, b in marks]

    def attention(
        self, qkv: Array, batch: BatchInputs[Array], *, num_heads: int, **options: Any
    ) -> Array:
        before = self.flops_total
        out = super().attention(qkv, batch, num_heads=num_heads, **options)
        left, right = options.get("window_left"), options.get("window_right")
        pairs = attended_pairs(batch.seq_lengths, left, 0 if options.get("causal") else right)
        self.flops_total = before + 4 * pairs * out.shape[1]
        return out

    def _launch(self, theme: str, dtype: np.dtype[Any], launch: Launch, *arguments: Any) -> None:
        self._timed(launch.kernel, partial(super()._launch, theme, dtype, launch, *arguments))

    def _timed_product(
        self, op: str, a: Array, b: Array, out: Array, *, transpose_b: bool, **options: Any
    ) -> None:
        groups = f"{a.shape[0]} x " if len(a.shape) == 3 else ""
        run = partial(self._product_of_library, op, a, b, out, transpose_b=transpose_b, **options)
        self._timed(f"product, {groups}{a.shape[-1]} to {out.shape[-1]}", run)

    def _timed(self, name: str, run: Callable[[], None]) -> None:
        if self._marks is None:
            run()
            return
        if self._keep_busy is not None:
            keep_busy, self._keep_busy = self._keep_busy, None
            marks, self._marks = self._marks, None
            keep_busy()
            self._marks = marks
        start = self._owned.mark()
        run()
        self._marks.append((name, start, self._owned.mark()))


def attended_pairs(lengths: Sequence[int], left: int | None, right: int | None) -> int:
    """Pairs of a query and a key that it sees."""
    return sum(_pairs(length, left, right) for length in lengths)


@cache
def _pairs(length: int, left: int | None, right: int | None) -> int:
    query = np.arange(length)
    first = np.maximum(0, query - (length if left is None else left))
    last = np.minimum(length - 1, query + (length if right is None else right))
    return int((last - first + 1).sum())
