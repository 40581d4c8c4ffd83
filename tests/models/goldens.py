"""Reads the golden files and judges vectors against them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from catalogue import CASES, Case

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

LARGEST_DIFFERENCE = 1e-5
NEARER = 100


@dataclass(frozen=True)
class Golden:
    """What the reference gives for one case of the catalogue."""

    name: str
    case: Case
    right: np.ndarray  # (texts, D), each text embedded alone
    batched: np.ndarray  # (texts, D)
    wrong: dict[str, np.ndarray]
    input_ids: list[list[int]]
    weights_sha256: str

    def check(self, vectors: np.ndarray) -> None:
        """The vectors are the right ones, and far from each wrong variant's."""
        assert vectors.dtype == np.float32
        assert vectors.shape == self.right.shape
        off = largest(vectors, self.right)
        assert off < LARGEST_DIFFERENCE, self.name
        for label, other in self.wrong.items():
            if other.shape == vectors.shape:
                assert NEARER * off < largest(vectors, other), f"{self.name}: {label}"


def largest(a: np.ndarray, b: np.ndarray) -> float:
    """The largest absolute difference."""
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


def smallest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The smallest cosine between rows of the same number."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / norms).min())


def load_golden(name: str) -> Golden:
    notes, arrays = tiny_json()["cases"][name], _tiny_arrays()
    case = CASES[name]
    assert tuple(notes["texts"]) == case.texts, f"{name}: run `make golden` again"
    marker = f"{name}/wrong/"
    return Golden(
        name=name,
        case=case,
        right=arrays[f"{name}/right"],
        batched=arrays[f"{name}/batched"],
        wrong={k.removeprefix(marker): v for k, v in arrays.items() if k.startswith(marker)},
        input_ids=notes["input_ids"],
        weights_sha256=notes["weights_sha256"],
    )


@cache
def tiny_json() -> dict[str, Any]:
    return json.loads((GOLDEN / "tiny.json").read_text(encoding="utf-8"))


@cache
def _tiny_arrays() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "tiny.npz") as file:
        return dict(file)


@cache
def minilm_json() -> dict[str, Any]:
    return json.loads((GOLDEN / "minilm.json").read_text(encoding="utf-8"))


@cache
def minilm_rows() -> Sequence[dict[str, Any]]:
    """{"text", "tokens", "source"} of each golden text."""
    with (GOLDEN / "texts.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def minilm_vectors(limit: int) -> np.ndarray:
    """Vectors at a length limit; at the folder's own limit only of the rows that it cuts."""
    return np.load(GOLDEN / f"minilm_{limit}.npy")
