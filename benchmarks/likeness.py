"""How near vectors lie to those of a reference."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


def likeness(vectors: Vectors, reference: Vectors) -> dict[str, float]:
    """Cosines of the rows, their mean and least, and the largest difference of two values."""
    a, b = (x.astype(np.float64) for x in (vectors, reference))  # (rows, D)
    cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {
        "cosine_mean": float(cosine.mean()),
        "cosine_min": float(cosine.min()),
        "largest_difference": float(np.abs(a - b).max()),
    }
