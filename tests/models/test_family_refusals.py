"""Folders of the families beside BERT that cannot be served exactly are refused at once.

Each entry damages a good folder, and names what the message must say: file, key or tensor, value,
and what was wanted. All are refused by the shape-only driver too, before any text is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damages import WEIGHTS, json_dropped, json_set
from families.distilbert import DISTIL
from families.modern_bert import EVERY_2, TinyModernBert
from families.mpnet import MPNET
from families.nomic_bert import DYNAMIC, PLAIN
from families.qwen3 import GROUPED, SLIDING
from families.roberta import ROBERTA
from families.tiny_model import TinyModel, build_model, word_tokenizer, write_tensors_and_ids

from arch import CheckpointError
from pipeline import Embedder

CONFIG = "config.json"
POOLING = "1_Pooling/config.json"
MODERN = TinyModernBert(hidden=32, layers=2)


@dataclass(frozen=True)
class Refusal:
    """damage: what is done to the good folder; says: parts that the message must have."""

    spec: TinyModel
    layout: str
    damage: Callable[[Path, TinyModel, str], object]
    says: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def _set(spec: TinyModel, layout: str, says: tuple[str, ...], **changes: Any) -> Refusal:
    """config.json with other values; the message has the file, the key, and the parts given."""
    change = json_set(CONFIG, **changes)
    return Refusal(spec, layout, lambda folder, *_: change(folder), (CONFIG, *changes, *says))


def _dropped(spec: TinyModel, layout: str, key: str) -> Refusal:
    change = json_dropped(CONFIG, key)
    return Refusal(spec, layout, lambda folder, *_: change(folder), (CONFIG, key))


def _without(spec: TinyModel, layout: str, name: str) -> Refusal:
    def damage(folder: Path, spec: TinyModel, layout: str) -> None:
        tensors = spec.stored(layout)
        del tensors[name]
        write_tensors_and_ids(folder / WEIGHTS, tensors)

    return Refusal(spec, layout, damage, (name, "no tensor"))


def _with(spec: TinyModel, layout: str, name: str, *shape: int) -> Refusal:
    def damage(folder: Path, spec: TinyModel, layout: str) -> None:
        added = {name: np.ones(shape, dtype=np.float32)}
        write_tensors_and_ids(folder / WEIGHTS, spec.stored(layout) | added)

    return Refusal(spec, layout, damage, (WEIGHTS, name, str(shape), "no place"))


def _bias(spec: TinyModel, layout: str, key: str, name: str) -> Refusal:
    """config.json says that there are biases, the file has none."""
    change = json_set(CONFIG, **{key: True})
    return Refusal(spec, layout, lambda folder, *_: change(folder), (name, "no tensor"))


def _nested(kind: str, rope_type: str) -> dict[str, Any]:
    """ModernBERT's rope_parameters with one layer type of another kind."""
    good = {"rope_theta": 10000.0, "rope_type": "default"}
    both = {"full_attention": good, "sliding_attention": good}
    return both | {kind: {"rope_theta": 10000.0, "rope_type": rope_type, "factor": 2.0}}


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
OLD_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

MODERN_BERT: dict[str, Refusal] = {
    "modern: scaled": _set(
        MODERN, "old", ("linear", "null"), rope_scaling={"type": "linear", "factor": 2.0}
    ),
    "modern: one layer type scaled": _set(
        MODERN, "new", ("yarn", "default"), rope_parameters=_nested("sliding_attention", "yarn")
    ),
    "modern: dynamic scaling": _set(
        MODERN, "new", ("dynamic",), rope_parameters=_nested("full_attention", "dynamic")
    ),
    "modern: rope of a third layer type": _set(
        MODERN,
        "new",
        ("chunked_attention", "unknown key"),
        rope_parameters=_nested("chunked_attention", "default"),
    ),
    "modern: too few layer types": _set(
        EVERY_2, "new", ("5", "4"), layer_types=["full_attention"] * 4
    ),
    "modern: layer type unknown": _set(
        MODERN,
        "new",
        ("chunked_attention", "full_attention", "sliding_attention"),
        layer_types=["full_attention", "chunked_attention"],
    ),
    "modern: layer types a string": _set(
        MODERN, "new", ("full_attention",), layer_types="full_attention"
    ),
    "modern: heads do not divide": _set(MODERN, "new", ("3", "32"), num_attention_heads=3),
    "modern: window a string": _set(MODERN, "new", ("'128'", "integer"), local_attention="128"),
    "modern: window zero": _set(MODERN, "old", ("0", "integer"), local_attention=0),
    "modern: base negative": _set(MODERN, "old", ("-1.0", "positive"), global_rope_theta=-1.0),
    "modern: every zeroth layer": _set(
        MODERN, "old", ("0", "integer"), global_attn_every_n_layers=0
    ),
    "modern: activation unknown": _set(
        MODERN, "new", ("made_up", "gelu"), hidden_activation="made_up"
    ),
    "modern: tensor missing": _without(MODERN, "new", "layers.1.attn.Wqkv.weight"),
    "modern: norm missing": _without(MODERN, "new_masked_lm", "model.layers.1.attn_norm.weight"),
    "modern: norm where there is none": _with(MODERN, "new", "layers.0.attn_norm.weight", 32),
    "modern: bias not in the config": _with(MODERN, "old", "layers.0.attn.Wo.bias", 32),
    "modern: bias of the norms missing": _bias(MODERN, "new", "norm_bias", "norm.bias"),
    "modern: bias of the attention missing": _bias(
        MODERN, "new", "attention_bias", "layers.0.attn.Wqkv.bias"
    ),
    "modern: bias of the MLP missing": _bias(MODERN, "old", "mlp_bias", "layers.0.mlp.Wi.bias"),
}

NOMIC_BERT: dict[str, Refusal] = {
    "nomic: scaling unknown": _set(PLAIN, "saved", ("yarn", "dynamic"), rope_parameters=YARN),
    "nomic: scaling unknown, old spelling": Refusal(
        PLAIN,
        "native",
        lambda folder, *_: json_set(CONFIG, rope_parameters=None, rope_scaling=OLD_YARN)(folder),
        (CONFIG, "rope_scaling.type", "yarn", "default, dynamic"),
    ),
    "nomic: scaled in both spellings": _set(
        PLAIN, "native", ("rope_parameters",), rope_scaling={"type": "dynamic", "factor": 2.0}
    ),
    "nomic: dynamic without a factor": _set(
        DYNAMIC,
        "saved",
        ("factor",),
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1000.0},
    ),
    "nomic: rotated in part, own spelling": _set(
        PLAIN,
        "saved",
        ("partial_rotary_factor", "0.5"),
        rope_parameters={"rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    ),
    "nomic: fraction zero": _set(PLAIN, "hub", ("0.0",), rotary_emb_fraction=0.0),
    "nomic: fraction above one": _set(PLAIN, "hub", ("1.5",), rotary_emb_fraction=1.5),
    "nomic: fraction leaves an odd part": _set(
        PLAIN, "hub", ("0.05", "64"), rotary_emb_fraction=0.05
    ),
    "nomic: interleaved": _set(PLAIN, "hub", ("True", "False"), rotary_emb_interleaved=True),
    "nomic: scaled by position": _set(PLAIN, "hub", ("512",), rotary_emb_scale_base=512),
    "nomic: norm first": _set(PLAIN, "hub", ("True", "False"), prenorm=True),
    "nomic: causal": _set(PLAIN, "hub", ("True", "False"), causal=True),
    "nomic: parallel": _set(PLAIN, "hub", ("True", "False"), parallel_block=True),
    "nomic: RMS norm": _set(PLAIN, "hub", ("True", "False"), use_rms_norm=True),
    "nomic: no gate": _set(PLAIN, "hub", ("gelu", "swiglu"), activation_function="gelu"),
    "nomic: experts": _set(PLAIN, "hub", ("2",), moe_every_n_layers=2),
    "nomic: heads do not divide": _set(PLAIN, "hub", ("3", "128"), n_head=3),
    "nomic: heads do not divide, own spelling": _set(
        PLAIN, "saved", ("3", "128"), num_attention_heads=3
    ),
    "nomic: head_dim of its own": _set(PLAIN, "saved", ("48", "64"), head_dim=48),
    "nomic: tensor missing": _without(PLAIN, "hub", "encoder.layers.1.mlp.fc12.weight"),
    "nomic: tensor missing, own spelling": _without(PLAIN, "native", "layers.1.mlp.up_proj.weight"),
    "nomic: projection of q missing": _without(PLAIN, "native", "layers.0.self_attn.q_proj.weight"),
    "nomic: two spellings at once": _with(PLAIN, "saved", "layers.0.mlp.up_proj.weight", 96, 128),
    "nomic: bias of the attention missing": _bias(PLAIN, "hub", "qkv_proj_bias", "Wqkv.bias"),
    "nomic: bias into the MLP missing": _bias(PLAIN, "hub", "mlp_fc1_bias", "fc12.bias"),
    "nomic: bias out of the MLP missing": _bias(PLAIN, "hub", "mlp_fc2_bias", "fc2.bias"),
    "nomic: bias not in the config": _with(PLAIN, "hub", "encoder.layers.0.attn.Wqkv.bias", 384),
}

QWEN3: dict[str, Refusal] = {
    "qwen3: scaled": _set(GROUPED, "new", ("yarn", "default"), rope_parameters=YARN),
    "qwen3: scaled, old spelling": _set(GROUPED, "old", ("yarn",), rope_scaling=OLD_YARN),
    "qwen3: dynamic": _set(
        GROUPED, "old", ("dynamic", "default"), rope_scaling={"rope_type": "dynamic", "factor": 2.0}
    ),
    "qwen3: too many layer types": _set(
        GROUPED, "new", ("3", "4"), layer_types=["full_attention"] * 4
    ),
    "qwen3: layer type unknown": _set(
        GROUPED,
        "new",
        ("linear_attention", "full_attention"),
        layer_types=["full_attention", "linear_attention", "full_attention"],
    ),
    "qwen3: sliding without a window": Refusal(
        GROUPED,
        "new",
        lambda folder, *_: json_set(CONFIG, layer_types=["sliding_attention"] * 3)(folder),
        (CONFIG, "use_sliding_window", "False", "sliding_attention"),
    ),
    "qwen3: window zero": _set(SLIDING, "old", ("0", "integer"), sliding_window=0),
    "qwen3: kv heads do not divide": _set(GROUPED, "new", ("3", "4"), num_key_value_heads=3),
    "qwen3: more kv heads than heads": _set(GROUPED, "new", ("8", "4"), num_key_value_heads=8),
    "qwen3: odd heads": _set(GROUPED, "new", ("31", "even"), head_dim=31),
    "qwen3: head_dim not that of the tensors": Refusal(
        GROUPED,
        "new",
        lambda folder, *_: json_dropped(CONFIG, "head_dim")(folder),
        (WEIGHTS, "layers.0.self_attn.q_proj.weight", "(128, 64)", "(512, 64)"),
    ),
    "qwen3: sees later tokens": _set(GROUPED, "new", ("False", "True"), is_causal=False),
    "qwen3: pools the first token": Refusal(
        GROUPED,
        "new",
        lambda folder, *_: json_set(POOLING, pooling_mode="cls")(folder),
        ("cls", "lasttoken", "mean"),
    ),
    "qwen3: pools the first token among others": Refusal(
        GROUPED,
        "new",
        lambda folder, *_: json_set(POOLING, pooling_mode=["mean", "cls"])(folder),
        ("cls", "lasttoken", "mean"),
    ),
    "qwen3: asked to pool the first token": Refusal(
        GROUPED, "new", lambda *_: None, ("cls", "lasttoken"), {"pooling": "cls"}
    ),
    "qwen3: no end token is added": Refusal(
        GROUPED,
        "new",
        lambda folder, spec, _: word_tokenizer(spec.vocab, adds_end=False).save(
            str(folder / "tokenizer.json")
        ),
        ("tokenizer.json", "end of a text", "lasttoken"),
    ),
    "qwen3: norm of q missing": _without(GROUPED, "new", "layers.1.self_attn.q_norm.weight"),
    "qwen3: bias not in the config": _with(GROUPED, "old", "layers.0.self_attn.q_proj.bias", 128),
    "qwen3: bias of the config missing": _bias(
        GROUPED, "new", "attention_bias", "layers.0.self_attn.q_proj.bias"
    ),
}

BERT_LINE: dict[str, Refusal] = {
    "roberta: no pad id": _set(ROBERTA, "new", ("None", "an id"), pad_token_id=None),
    "roberta: pad id negative": _set(ROBERTA, "new", ("-1", "integer"), pad_token_id=-1),
    "roberta: no rows beside the padding": _set(
        ROBERTA, "new", ("2", "integer"), max_position_embeddings=2
    ),
    "roberta: relative positions": _set(
        ROBERTA, "old", ("relative_key", "absolute"), position_embedding_type="relative_key"
    ),
    "roberta: decoder": _set(ROBERTA, "new", ("True", "False"), is_decoder=True),
    "roberta: positions more than the table": Refusal(
        ROBERTA,
        "new",
        lambda folder, *_: json_set(CONFIG, max_position_embeddings=600)(folder),
        (WEIGHTS, "position_embeddings", "(520, 64)", "(600, 64)"),
    ),
    "roberta: heads do not divide": _set(ROBERTA, "new", ("3", "64"), num_attention_heads=3),
    "roberta: token types missing": _without(
        ROBERTA, "new", "embeddings.token_type_embeddings.weight"
    ),
    "roberta: tensor unmapped": _with(ROBERTA, "new", "encoder.layer.0.adapter.weight", 4, 4),
    "distilbert: heads do not divide": _set(DISTIL, "new", ("3", "64"), n_heads=3),
    "distilbert: activation unknown": _set(
        DISTIL, "new", ("made_up", "gelu"), activation="made_up"
    ),
    "distilbert: width missing": _dropped(DISTIL, "new", "dim"),
    "distilbert: token types": _with(
        DISTIL, "new", "embeddings.token_type_embeddings.weight", 2, 64
    ),
    "distilbert: tensor missing": _without(
        DISTIL, "new", "transformer.layer.2.attention.k_lin.weight"
    ),
    "mpnet: buckets": _set(MPNET, "new", ("64", "32"), relative_attention_num_buckets=64),
    "mpnet: relative bias missing": _without(
        MPNET, "new_masked_lm", "mpnet.encoder.relative_attention_bias.weight"
    ),
}

REFUSALS = {**MODERN_BERT, **NOMIC_BERT, **QWEN3, **BERT_LINE}


@pytest.mark.parametrize("driver_name", ["numpy", "null"])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_folder_that_cannot_be_served_exactly_is_refused(tmp_path, name, driver_name):
    refusal = REFUSALS[name]
    folder = build_model(tmp_path, refusal.spec, refusal.layout)
    refusal.damage(folder, refusal.spec, refusal.layout)
    with pytest.raises(CheckpointError) as caught:
        Embedder.open(folder, driver=driver_name, **refusal.options)
    message = str(caught.value)
    missing = [part for part in refusal.says if part not in message]
    assert not missing, message


def test_the_table_starts_from_folders_that_load(family_folder):
    starts = {repr((r.spec, r.layout)): (r.spec, r.layout) for r in REFUSALS.values()}
    for spec, layout in starts.values():
        folder = family_folder(spec, layout)
        with Embedder.open(folder, driver="null") as embedder:
            assert embedder.encode(["w7 w8"]).shape == (1, embedder.dim)
