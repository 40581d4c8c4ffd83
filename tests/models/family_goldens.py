"""Reads the goldens of the families beside BERT and judges vectors against them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from families import CASES
from families.tiny_model import Case
from goldens import GOLDEN, NEARER, largest

from arch import ModelArch
from drivers.types import Encoding

LARGEST_DIFFERENCE = 2e-5
TOGETHER = 200
"""Rows up to this length go through the model as one batch; a longer one beside a short one."""


@dataclass(frozen=True)
class FamilyGolden:
    """What the reference gives for one case: each row embedded alone."""

    name: str
    case: Case
    right: np.ndarray  # (rows, modes * E)
    wrong: dict[str, np.ndarray]  # (case.wrong_rows(), modes * E)
    notes: dict[str, Any]

    def check(self, vectors: np.ndarray, rows: Sequence[int] | None = None) -> None:
        """The vectors are the right ones, and far from each wrong variant's and wrong pooling's.

        rows: which rows of the case they are of; None for all.
        """
        rows = range(len(self.right)) if rows is None else rows
        right = self.right[rows]
        assert vectors.dtype == np.float32
        assert vectors.shape == right.shape
        off = largest(vectors, right)
        assert off < LARGEST_DIFFERENCE, f"{self.name}: {off:.2e}"
        found = [
            (i, rows.index(row)) for i, row in enumerate(self.case.wrong_rows()) if row in rows
        ]
        at, among = map(list, zip(*found))
        for label, other in self.wrong.items():
            assert NEARER * off < largest(vectors[among], other[at]), f"{self.name}: {label}"
        modes = self.case.spec.modes
        pooled, wanted = (np.split(each, len(modes), axis=1) for each in (vectors, right))
        for one, other in combinations(range(len(modes)), 2):
            wrong = largest(pooled[one], wanted[other])
            assert NEARER * off < wrong, f"{self.name}: {modes[one]} as {modes[other]}"


def load_family_golden(name: str) -> FamilyGolden:
    arrays, case = _arrays(), CASES[name]
    marker = f"{name}/wrong/"
    wrong = {k.removeprefix(marker): v for k, v in arrays.items() if k.startswith(marker)}
    assert set(wrong) == {*case.wrong, *case.slips}, f"{name}: run `make golden` again"
    return FamilyGolden(name, case, arrays[f"{name}/right"], wrong, families_json()["cases"][name])


def embed_rows(model: ModelArch, driver: Any, rows: Sequence[np.ndarray]) -> np.ndarray:
    """The vectors of token ids in ragged batches: (rows, D)."""
    vectors = np.empty((len(rows), model.dim), dtype=np.float32)
    short = [i for i, row in enumerate(rows) if len(row) <= TOGETHER]
    batches = [short] if short else []
    batches += [[i, *short[:1]] for i in range(len(rows)) if i not in short]
    for batch in batches:
        vectors[batch] = model.forward(driver, [Encoding(rows[i]) for i in batch])
    return vectors


def each_layout(cases: dict[str, Case]) -> list[tuple[str, str]]:
    """(case, layout) pairs, for `parametrize`."""
    return [(name, layout) for name, case in cases.items() for layout in case.spellings()]


@cache
def families_json() -> dict[str, Any]:
    return json.loads((GOLDEN / "families.json").read_text(encoding="utf-8"))


@cache
def _arrays() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "families.npz") as file:
        return dict(file)
