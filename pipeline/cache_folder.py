"""Where things lie that can be made again: below the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def packed_folder() -> Path:
    """Packed weights: $XDG_CACHE_HOME/rayvec/packed, or ~/.cache/rayvec/packed."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rayvec" / "packed"
