"""A stored tensor's values: mapped as they are, or converted a block at a time.

What is converted is written straight into its place, and the file's pages behind it are given back
block by block: loading a model takes the memory of its packed weights and little more.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from arch.errors import CheckpointError

STORED: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
FLOAT16_MAX = float(np.finfo(np.float16).max)
BLOCK_VALUES = 1 << 18  # 1 MiB of float32: a block and its copy fit the L2 cache


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: its file, stored dtype name, shape, and the mapped file's bytes."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class _Extremes:
    """The smallest and largest of the values seen; both are NaN where a value is."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def add(self, values: NDArray[Any]) -> None:
        self._seen += float(values.min()), float(values.max())

    def check(self, label: str, tensor: StoredTensor, dtype: np.dtype[Any]) -> None:
        """Refuse values that are not finite, and such as float16 would make infinities of."""
        if not np.isfinite(self._seen).all():
            raise CheckpointError(tensor.path, f"{label} holds values that are not finite")
        largest = max(map(abs, self._seen), default=0.0)
        if dtype == np.float16 and largest > FLOAT16_MAX:
            raise CheckpointError(
                tensor.path,
                f"{label} reaches {largest:.3g}, beyond float16 ({FLOAT16_MAX:g}); use float32",
            )


def to_host(label: str, tensor: StoredTensor, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """The tensor's values in `dtype`; None: float32 or float16 as stored, float32 for bfloat16.

    Values stored in that dtype are a mapped view. Others are converted, and so are copied those
    that the file does not align. Raises CheckpointError for any other stored dtype, for values that
    are not finite, and for values beyond a wanted float16. label: what messages call the tensor.
    """
    want = stored_dtype(label, tensor) if dtype is None else np.dtype(dtype)
    mapped = _mapped(label, tensor)
    if tensor.dtype == "BF16" or mapped.dtype != want or not mapped.flags.aligned:
        out = np.empty(tensor.shape, want)
        copy_to(label, tensor, out)
        return out
    seen = _Extremes()
    for block in _blocks(mapped.size):
        seen.add(mapped[block])
    seen.check(label, tensor, want)
    return mapped.reshape(tensor.shape)


def copy_to(label: str, tensor: StoredTensor, out: NDArray[Any]) -> None:
    """Write the tensor's values into `out`, contiguous and of its shape, rounded to its dtype.

    Widening a bfloat16 is exact: it is the upper half of a float32. Raises as `to_host`.
    """
    mapped, flat, seen = _mapped(label, tensor), out.reshape(-1), _Extremes()
    for block in _blocks(mapped.size):
        values = mapped[block]
        if tensor.dtype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        seen.add(values)
        with np.errstate(over="ignore"):  # refused below
            flat[block] = values
        _release(mapped[: block.stop])  # a fault brings neighbours back, so all of them again
    seen.check(label, tensor, out.dtype)


def stored_dtype(label: str, tensor: StoredTensor) -> np.dtype[Any]:
    """The dtype that holds the stored values exactly. Raises CheckpointError for an unknown one."""
    if tensor.dtype not in STORED:
        have = ", ".join(STORED)
        raise CheckpointError(
            tensor.path, f"{label} is stored as {tensor.dtype}, wanted one of {have}"
        )
    return np.dtype(np.float32) if tensor.dtype == "BF16" else STORED[tensor.dtype]


def _mapped(label: str, tensor: StoredTensor) -> NDArray[Any]:
    """The stored values as a flat mapped view, a bfloat16 as its 16 bits."""
    stored_dtype(label, tensor)
    return tensor.data.view(STORED[tensor.dtype])


def _blocks(size: int) -> Iterator[slice]:
    for start in range(0, size, BLOCK_VALUES):
        yield slice(start, min(size, start + BLOCK_VALUES))


def _release(part: NDArray[Any]) -> None:
    """Give back the memory of the mapped pages under `part`; read again, they come from the file.

    Does nothing for values that are not mapped.
    """
    base: Any = part
    while isinstance(base, np.ndarray):
        whole, base = base, base.base
    if not isinstance(base, mmap.mmap):
        return
    first = part.ctypes.data - whole.ctypes.data
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, start, first + part.nbytes - start)
