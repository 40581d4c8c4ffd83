"""Model folders of full size with random weights, written without torch and a block at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_VALUES = 1 << 22
STD = 0.02
BYTES = {"F32": 4, "BF16": 2}

Shapes = dict[str, tuple[int, ...]]


class Family(NamedTuple):
    """A model to write: its config.json as transformers 5 writes it, tensors and stored dtype."""

    config: dict[str, Any]
    shapes: Shapes
    stored: str

    @property
    def values(self) -> int:
        """How many weights it has."""
        return sum(map(prod, self.shapes.values()))


def modernbert_base() -> Family:
    """The shape of answerdotai/ModernBERT-base."""
    layers, hidden, inner, vocab = 22, 768, 1152, 50368
    rope = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
    config = {
        "architectures": ["ModernBertModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 50281,
        "cls_token_id": 50281,
        "embedding_dropout": 0.0,
        "eos_token_id": 50282,
        "hidden_activation": "gelu",
        "hidden_size": hidden,
        "initializer_range": STD,
        "intermediate_size": inner,
        "layer_types": ["sliding_attention" if n % 3 else "full_attention" for n in range(layers)],
        "local_attention": 128,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05,
        "num_attention_heads": 12,
        "num_hidden_layers": layers,
        "pad_token_id": 50283,
        "rope_parameters": {
            kind: {"rope_theta": theta, "rope_type": "default"} for kind, theta in rope.items()
        },
        "sep_token_id": 50282,
        "tie_word_embeddings": True,
        "transformers_version": "5.24.0",
        "vocab_size": vocab,
    }
    shapes: Shapes = {
        "embeddings.tok_embeddings.weight": (vocab, hidden),
        "embeddings.norm.weight": (hidden,),
        "final_norm.weight": (hidden,),
    }
    for layer in range(layers):
        at = f"layers.{layer}."
        if layer:
            shapes[f"{at}attn_norm.weight"] = (hidden,)
        shapes[f"{at}attn.Wqkv.weight"] = (3 * hidden, hidden)
        shapes[f"{at}attn.Wo.weight"] = (hidden, hidden)
        shapes[f"{at}mlp_norm.weight"] = (hidden,)
        shapes[f"{at}mlp.Wi.weight"] = (2 * inner, hidden)
        shapes[f"{at}mlp.Wo.weight"] = (hidden, inner)
    return Family(config, shapes, "F32")


def qwen3_embedding() -> Family:
    """The shape of Qwen/Qwen3-Embedding-0.6B."""
    layers, hidden, inner, vocab = 28, 1024, 3072, 151_669
    heads, kv_heads, head_dim = 16, 8, 128
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": STD,
        "intermediate_size": inner,
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": 32768,
        "max_window_layers": layers,
        "model_type": "qwen3",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "transformers_version": "5.24.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocab,
    }
    shapes: Shapes = {"embed_tokens.weight": (vocab, hidden), "norm.weight": (hidden,)}
    for layer in range(layers):
        at = f"layers.{layer}."
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            shapes[f"{at}self_attn.{part}_proj.weight"] = (rows * head_dim, hidden)
        for part in "qk":
            shapes[f"{at}self_attn.{part}_norm.weight"] = (head_dim,)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        for part in ("gate", "up"):
            shapes[f"{at}mlp.{part}_proj.weight"] = (inner, hidden)
        shapes[f"{at}mlp.down_proj.weight"] = (hidden, inner)
        for part in ("input", "post_attention"):
            shapes[f"{at}{part}_layernorm.weight"] = (hidden,)
    return Family(config, shapes, "BF16")


FAMILIES = {"ModernBERT-base": modernbert_base, "Qwen3-Embedding-0.6B": qwen3_embedding}


def write_folder(folder: Path, family: Family, seed: int = 0) -> None:
    """config.json, model.safetensors, and an empty tokenizer.json: texts are not needed here."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(family.config, indent=2), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in family.shapes.items():
        begin, end = end, end + prod(shape) * BYTES[family.stored]
        header[name] = {"dtype": family.stored, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in family.shapes.items():
            for values in _random(rng, prod(shape), mean=_mean_of(name)):
                stored = values if family.stored == "F32" else values.view(np.uint16)[1::2]
                file.write(stored.tobytes())


def _mean_of(name: str) -> float:
    """What a tensor's random values lie around: a norm's weights around 1."""
    return 1.0 if "norm" in name.lower() and name.endswith(".weight") else 0.0


def _random(rng: np.random.Generator, count: int, mean: float) -> Iterator[NDArray[np.float32]]:
    for start in range(0, count, BLOCK_VALUES):
        values = rng.standard_normal(min(BLOCK_VALUES, count - start), np.float32)
        yield values * np.float32(STD) + np.float32(mean)
