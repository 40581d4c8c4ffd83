"""What a launch is, and how a kernel's source is put together and built.

A theme is a file of kernels, kernels/THEME.cu, and the arithmetic of its launches,
launches/THEME.py: its KERNELS names the kernels, and its DEFINES are the constants that both need,
as NAME=VALUE. Where it has PARTS, they name the files kernels/PART.cuh that its kernels are written
with, and where it has DTYPES, they are the storage types it is built for, otherwise all are. The
prelude and the parts are pasted before the source: a compiler's cache does not see what an include
brings in.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.errors import DtypeError, ShapeError

KERNELS = Path(__file__).parent / "kernels"

LANES = 32  # threads of a warp
STORAGE: dict[np.dtype[Any], str] = {
    FLOAT32: "float",
    FLOAT16: "__half",
    BFLOAT16: "__nv_bfloat16",
}

GRID_LIMIT = 65535  # blocks along y, and along z
GRID_X_LIMIT = 2**31 - 1  # blocks along x
SHARED_BYTES_LIMIT = 48 * 1024  # what a block has without asking for more
SHARED_BYTES_OPT_IN = 99 * 1024  # what it has on any device from sm_80 on if the kernel asks


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel, blocks and threads by axis, and the shared memory of a block.

    Above SHARED_BYTES_LIMIT the device has to set the kernel's largest dynamic shared memory first.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Build:
    """What to compile: the source, its kernels, and what it is built with, as NAME=VALUE."""

    source: str
    kernels: tuple[str, ...]
    defines: tuple[str, ...]


def storage_types(theme: str) -> tuple[np.dtype[Any], ...]:
    """Those that a theme is built for."""
    dtypes: tuple[np.dtype[Any], ...] = getattr(_launches_of(theme), "DTYPES", tuple(STORAGE))
    return dtypes


def _launches_of(theme: str) -> ModuleType:
    return import_module(f"drivers.cuda.launches.{theme}")


def build_of(theme: str, dtype: np.dtype[Any]) -> Build:
    """A theme for a storage type.

    Raises DtypeError for a storage type that the kernels lack.
    """
    launches = _launches_of(theme)
    if dtype not in storage_types(theme):
        have = ", ".join(str(known) for known in storage_types(theme))
        raise DtypeError(f"cuda kernels: no storage type {dtype} of {theme}, only {have}")
    parts = getattr(launches, "PARTS", ())
    names = ("prelude.cu", *(f"{part}.cuh" for part in parts), f"{theme}.cu")
    texts = [(KERNELS / name).read_text(encoding="utf-8") for name in names]
    return Build("".join(texts), launches.KERNELS, (f"STORAGE={STORAGE[dtype]}", *launches.DEFINES))


def require_blocks(op: str, what: str, blocks: int, limit: int = GRID_LIMIT) -> None:
    """Refuse more blocks along an axis than a grid holds. Raises ShapeError."""
    if blocks > limit:
        raise ShapeError(f"{op}: {blocks} {what}, wanted at most {limit}")


def blocks_for(count: int, per_block: int) -> int:
    """Blocks that hold so many items, at least one."""
    return max(1, -(-count // per_block))
