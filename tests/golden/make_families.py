"""Goldens of the families beside BERT, from the classes of `transformers`, one row at a time.

Writes families.npz and families.json: pooled vectors of the cases in tests/models/families, and of
the wrong variants of each. On the way it proves the spellings: `transformers` reads every layout of
a model as the same numbers, and writes config.json and tensor names as the first layout has them.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from families import CASES
from families.modern_bert import TinyModernBert
from families.nomic_bert import TinyNomicBert
from families.tiny_model import Case, TinyModel, build_model, rows_hash, weights_hash
from folders import write_json
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from tests.golden import nomic_reference
from tests.golden.family_slips import slipped

Arrays = dict[str, np.ndarray]

WRITTEN = ("new", "saved", "native", "new_masked_lm", "saved_masked_lm", "new_causal_lm")
"""Layouts that `transformers` 5 writes."""

NEAR = 2e-5
"""How far the formulas in float64 may be from the class in float32."""


def make_families() -> tuple[Arrays, dict[str, object]]:
    """(arrays, notes): right and wrong vectors by case, and what they were made from."""
    arrays: Arrays = {}
    notes: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, case in CASES.items():
            made, note = _make_case(Path(scratch, name), case)
            arrays |= {f"{name}/{key}": values for key, values in made.items()}
            notes[name] = note
            print(f"{name}: {made['right'].shape}, {json.dumps(note['wrong'])}", flush=True)
    return arrays, notes


def _make_case(scratch: Path, case: Case) -> tuple[Arrays, dict[str, Any]]:
    spec, rows = case.spec, case.rows()
    picked = [rows[i] for i in case.wrong_rows()]
    right = np.stack([embed(scratch, spec)(ids) for ids in rows])
    made = {"right": right}
    for label, other in case.wrong.items():
        made[f"wrong/{label}"] = np.stack([embed(scratch, other)(ids) for ids in picked])
    for label in case.slips:
        pool = _pooler(spec)
        vectors = slipped(label, spec, open_model(scratch, spec), run, pool)
        made[f"wrong/{label}"] = np.stack([vectors(ids) for ids in picked])
    wrong = {
        key.removeprefix("wrong/"): float(np.abs(values - right[case.wrong_rows()]).max())
        for key, values in made.items()
        if key != "right"
    }
    assert all(distance > 1e-4 for distance in wrong.values()), wrong
    note = {
        "seed": spec.seed,
        "weights_sha256": weights_hash(spec),
        "rows_sha256": rows_hash(case),
        "modes": spec.modes,
        "reference": "float64 formulas" if beyond_transformers(spec) else "transformers",
        "float64_difference": _float64_difference(scratch, case, right),
        "spellings": prove_spellings(scratch, case),
        "wrong": {label: float(f"{distance:.2e}") for label, distance in wrong.items()},
    }
    return made, note


# ---- the reference


def beyond_transformers(spec: TinyModel) -> bool:
    """Whether the spec uses what only Nomic BERT's remote code has."""
    return isinstance(spec, TinyNomicBert) and (
        spec.fraction != 1 or spec.qkv_bias or spec.mlp_bias
    )


def embed(scratch: Path, spec: TinyModel) -> Callable[[np.ndarray], np.ndarray]:
    """The right vectors of one row: ids -> (D,)."""
    pool = _pooler(spec)
    if beyond_transformers(spec):
        return lambda ids: pool(nomic_reference.hidden_states(spec, ids))
    model = open_model(scratch, spec)
    return lambda ids: pool(run(model, ids))


def open_model(scratch: Path, spec: TinyModel, layout: str | None = None) -> Any:
    """The folder as `transformers` loads it, with no weight left to chance."""
    layout = layout or next(name for name in spec.layouts if _config_is_read(spec, name))
    with tempfile.TemporaryDirectory(dir=_made(scratch)) as name:
        folder = build_model(Path(name), spec, layout)
        write_json(folder / "config.json", _reference_config(spec, layout))
        if layout == "hub_masked_lm":  # the class knows another prefix than the remote code's
            path = folder / "model.safetensors"
            tensors = load_file(path)
            save_file({re.sub("^bert", "nomic_bert", k): v for k, v in tensors.items()}, path)
        model, said = AutoModel.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    left_to_chance = [key for key in said["missing_keys"] if not key.startswith("pooler.")]
    assert not left_to_chance, left_to_chance
    assert not said["mismatched_keys"], said["mismatched_keys"]
    return model.eval()


def run(model: Any, ids: np.ndarray, **inputs: Any) -> np.ndarray:
    """The last hidden states of one row: (S, E) float32. Nothing is kept of longer rows."""
    model_ids = torch.tensor(ids[None].astype(np.int64))
    inputs = {"attention_mask": torch.ones_like(model_ids), **inputs}
    rotary = copy.deepcopy(getattr(model, "rotary_emb", None))
    states = model(input_ids=model_ids, **inputs).last_hidden_state[0]
    if rotary is not None:
        model.rotary_emb = rotary
    return states.numpy()


def _pooler(spec: TinyModel) -> Callable[[np.ndarray], np.ndarray]:
    pools = {
        "cls": lambda states: states[0],
        "mean": lambda states: states.mean(axis=0, dtype=np.float64).astype(np.float32),
        "lasttoken": lambda states: states[-1],
    }
    return lambda states: np.concatenate([pools[mode](states) for mode in spec.modes])


def _float64_difference(scratch: Path, case: Case, right: np.ndarray) -> float:
    """How far the reference's own float32 rounding takes it, over the rows up to 515 tokens."""
    if beyond_transformers(case.spec):
        return 0.0
    model, pool = open_model(scratch, case.spec).double(), _pooler(case.spec)
    exact = [(i, pool(run(model, ids))) for i, ids in enumerate(case.rows()) if len(ids) <= 515]
    return float(f"{max(np.abs(right[i] - vector).max() for i, vector in exact):.2e}")


# ---- spellings


def prove_spellings(scratch: Path, case: Case) -> dict[str, str]:
    """What was proved of each layout of the case."""
    spec, proofs = case.spec, {}
    rows = [row for row in case.rows() if len(row) in (4, 7, 66, 130)]
    for layout in case.spellings():
        if beyond_transformers(spec):
            plain = replace(spec, fraction=1.0, qkv_bias=False, mlp_bias=False)
            right = [nomic_reference.hidden_states(plain, ids) for ids in rows]
            got = [run(open_model(scratch, plain, layout), ids) for ids in rows]
            assert all(np.abs(a - b).max() < NEAR for a, b in zip(got, right))
            proofs[layout] = "formulas agree with transformers without what it lacks"
            continue
        first, other = open_model(scratch, spec), open_model(scratch, spec, layout)
        assert all(np.array_equal(run(first, ids), run(other, ids)) for ids in rows), layout
        proofs[layout] = "read" if _config_is_read(spec, layout) else "tensors read"
        if layout in WRITTEN:
            _prove_written(scratch, spec, layout)
            proofs[layout] = "read and written"
    return proofs


def _prove_written(scratch: Path, spec: TinyModel, layout: str) -> None:
    """`transformers` writes what the layout has: config.json, and each tensor by name."""
    auto = AutoModel
    if layout.endswith("masked_lm"):
        auto = AutoModelForMaskedLM
    elif layout.endswith("causal_lm"):
        auto = AutoModelForCausalLM
    with tempfile.TemporaryDirectory(dir=_made(scratch)) as name:
        folder, saved = build_model(Path(name, "ours"), spec, layout), Path(name, "saved")
        model = auto.from_pretrained(folder, dtype=torch.float32)
        model.save_pretrained(saved, save_original_format=layout != "native")
        written = json.loads((saved / "config.json").read_text(encoding="utf-8"))
        ours = spec.config(layout)
        if "head_dim" in written and not getattr(spec, "head_dim_said", True):
            ours["head_dim"] = 128  # what the class takes where nothing is said
        for config in (written, ours):
            config.pop("transformers_version")
        assert written == ours, (layout, written, ours)
        tensors, stored = load_file(saved / "model.safetensors"), spec.stored(layout)
        assert set(tensors) == set(stored), set(tensors) ^ set(stored)
        assert all(np.array_equal(tensors[key], stored[key]) for key in stored)


def _config_is_read(spec: TinyModel, layout: str) -> bool:
    """Whether `transformers` reads the layout's config.json; not that of the remote code."""
    return not (isinstance(spec, TinyNomicBert) and layout.startswith("hub"))


def _reference_config(spec: TinyModel, layout: str) -> dict[str, Any]:
    """The layout's config, or its meaning in a spelling that `transformers` reads.

    With a null local base version 5.24 fails; version 4 took the global one.
    """
    if not _config_is_read(spec, layout):
        return spec.config("saved")
    if isinstance(spec, TinyModernBert) and spec.null_local_base:
        return replace(spec, null_local_base=False).config(layout)
    return spec.config(layout)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
