"""Where things lie that can be made again: below the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def packed_folder() -> Path:
    """Packed weights: $XDG_CACHE_HOME/rayvec/packed, or ~/.cache/rayvec/packed."""
    return _cache_folder() / "packed"


def cubin_folder() -> Path:
    """Compiled CUDA kernels: $XDG_CACHE_HOME/rayvec/cubins, or ~/.cache/rayvec/cubins."""
    return _cache_folder() / "cubins"


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rayvec"
