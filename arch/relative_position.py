"""Relative position buckets as T5 (Raffel et al. 2020) and MPNet (Song et al. 2020) have them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BUCKETS = 32
EXACT = 8
FARTHEST = 128


def relative_buckets(positions: int) -> NDArray[np.int64]:
    """The bucket of each distance key - query, from -(P - 1) to P - 1: (2 P - 1,).

    A bucket for each distance below `EXACT`, wider ones up to `FARTHEST`; keys after the query take
    the upper half of the `BUCKETS`.
    """
    distance = np.arange(1 - positions, positions)
    away = np.abs(distance)
    logs = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(EXACT))
    widening = logs / np.float32(np.log(FARTHEST / EXACT)) * np.float32(EXACT)
    far = np.minimum(EXACT + widening.astype(np.int64), BUCKETS // 2 - 1)
    side = np.where(distance > 0, BUCKETS // 2, 0)
    buckets: NDArray[np.int64] = side + np.where(away < EXACT, away, far)
    return buckets
