"""Mistakes made on purpose inside the reference models, by the names that the cases list.

`slipped` takes the open model and gives a function of one row's token ids to the vectors that an
engine with the mistake would return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from families.tiny_model import END_ID, TinyModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

Pooled = Callable[[np.ndarray], np.ndarray]
"""Hidden states (S, E), or a row's token ids (S,), to vectors (D,)."""

Run = Callable[..., np.ndarray]
"""`make_families.run`: model and token ids to hidden states (S, E)."""


def mask(length: int, *, causal: bool) -> torch.Tensor:
    """What is added to the scores: (1, 1, S, S)."""
    blocked = torch.ones(length, length, dtype=torch.bool).triu(1) & causal
    return torch.zeros(length, length).masked_fill(blocked, torch.finfo(torch.float32).min)[
        None, None
    ]


def layer_masks(model: Any, length: int, *, causal: bool) -> Any:
    """One mask for all layers, as the model's class takes it."""
    one = mask(length, causal=causal)
    if hasattr(model.config, "layer_types"):
        return {"full_attention": one, "sliding_attention": one}
    return one


def slipped(name: str, spec: TinyModel, model: Any, run: Run, pool: Pooled) -> Pooled:
    """The vectors of one row under a mistake: ids -> (D,)."""
    if name in ("causal", "not_causal", "no_window"):
        return lambda ids: pool(
            run(model, ids, attention_mask=layer_masks(model, len(ids), causal=name == "causal"))
        )
    if name in ("positions_from_0", "pads_counted"):
        first = 0 if name == "positions_from_0" else model.embeddings.padding_idx + 1
        return lambda ids: pool(
            run(model, ids, position_ids=torch.arange(first, first + len(ids))[None])
        )
    if name in ("no_q_norm", "no_k_norm", "norms_exchanged"):
        for layer in model.layers:
            attention = layer.self_attn
            if name == "norms_exchanged":
                attention.q_norm, attention.k_norm = attention.k_norm, attention.q_norm
            else:
                setattr(attention, name.removeprefix("no_"), torch.nn.Identity())
        return lambda ids: pool(run(model, ids))
    if name == "slot_before_the_last":
        return lambda ids: _with_last(spec, pool, run(model, ids), -2)
    if name == "slot_of_the_padding":
        return lambda ids: _with_padding(spec, model, run, pool, ids)
    if name == "no_end_token":
        return lambda ids: pool(run(model, ids[:-1]))
    if name == "end_token_twice":
        return lambda ids: pool(run(model, np.append(ids, np.int32(END_ID))))
    if name == "base_of_the_longest":
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, seq_len=515)
        model.rotary_emb.inv_freq = model.rotary_emb.original_inv_freq = frequencies
        model.rotary_emb.max_seq_len_cached = 10**6
        return lambda ids: pool(run(model, ids))
    raise ValueError(f"no slip '{name}'")


def _with_last(spec: TinyModel, pool: Pooled, states: np.ndarray, slot: int) -> np.ndarray:
    """The right vectors, but that of the last token from another slot."""
    vectors = pool(states).reshape(len(spec.modes), -1).copy()
    vectors[spec.modes.index("lasttoken")] = states[slot]
    return vectors.ravel()


def _with_padding(
    spec: TinyModel, model: Any, run: Run, pool: Pooled, ids: np.ndarray
) -> np.ndarray:
    """The row padded on the right by three, and its last slot taken for the last token."""
    padded = np.append(ids, np.full(3, END_ID, dtype=np.int32))
    attended = torch.tensor([[1] * len(ids) + [0] * 3])
    states = run(model, padded, attention_mask=attended)
    vectors = pool(states[: len(ids)]).reshape(len(spec.modes), -1).copy()
    vectors[spec.modes.index("lasttoken")] = states[-1]
    return vectors.ravel()
