"""Tiny ModernBERT models: config.json as `transformers` 5 and 4 write it, and their goldens' cases.

Every third layer is global by default; the others see `local_attention` tokens around each token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from families.tiny_model import (
    LONG,
    SHORT,
    Case,
    Shapes,
    Tensors,
    TinyModel,
    linear,
    norm,
    prefixed,
)

KINDS = {True: "full_attention", False: "sliding_attention"}


@dataclass(frozen=True)
class TinyModernBert(TinyModel):
    """layer_types: instead of every n-th layer global. null_local_base: local_rope_theta is null in
    the old spelling. gate_swapped, biases_zeroed: to make wrong variants.
    """

    layers: int = 4
    act: str = "gelu"
    every: int = 3
    local: int = 128
    global_base: float = 160000.0
    local_base: float = 10000.0
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    layer_types: tuple[str, ...] | None = None
    null_local_base: bool = False
    gate_swapped: bool = False
    biases_zeroed: bool = False

    layouts: ClassVar[tuple[str, ...]] = ("new", "old", "new_masked_lm", "old_masked_lm")

    def kinds(self) -> list[str]:
        """The type of each layer."""
        return list(self.layer_types or (KINDS[i % self.every == 0] for i in range(self.layers)))

    def config(self, layout: str) -> dict[str, Any]:
        said: dict[str, Any] = {
            "architectures": [
                "ModernBertForMaskedLM" if layout.endswith("masked_lm") else "ModernBertModel"
            ],
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "classifier_activation": "gelu",
            "classifier_bias": False,
            "classifier_dropout": 0.0,
            "classifier_pooling": "mean",
            "cls_token_id": 2,
            "decoder_bias": True,
            "deterministic_flash_attn": False,
            "embedding_dropout": 0.0,
            "eos_token_id": 3,
            "hidden_activation": self.act,
            "hidden_size": self.hidden,
            "initializer_cutoff_factor": 2.0,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "local_attention": self.local,
            "max_position_embeddings": 8192,
            "mlp_bias": self.mlp_bias,
            "mlp_dropout": 0.0,
            "model_type": "modernbert",
            "norm_bias": self.norm_bias,
            "norm_eps": self.eps,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": 4,
            "sep_token_id": 3,
            "tie_word_embeddings": True,
            "vocab_size": self.vocab,
        }
        if layout.startswith("old"):
            return said | {
                "global_attn_every_n_layers": self.every,
                "global_rope_theta": self.global_base,
                "gradient_checkpointing": False,
                "layer_norm_eps": 1e-05,  # not read
                "local_rope_theta": None if self.null_local_base else self.local_base,
                "position_embedding_type": "absolute",
                "torch_dtype": "float32",
                "transformers_version": "4.47.0.dev0",
            }
        return said | {
            "dtype": "float32",
            "layer_types": self.kinds(),
            "rope_parameters": {
                "full_attention": {"rope_theta": self.global_base, "rope_type": "default"},
                "sliding_attention": {"rope_theta": self.local_base, "rope_type": "default"},
            },
            "sparse_pred_ignore_index": -100,
            "sparse_prediction": False,
            "transformers_version": "5.24.0",
        }

    def shapes(self) -> Shapes:
        size, wide, nb = self.hidden, self.intermediate, self.norm_bias
        shapes: Shapes = {"embeddings.tok_embeddings.weight": ("table", (self.vocab, size))}
        shapes |= norm("embeddings.norm", size, bias=nb)
        for i in range(self.layers):
            layer = f"layers.{i}"
            if i:
                shapes |= norm(f"{layer}.attn_norm", size, bias=nb)
            shapes |= linear(f"{layer}.attn.Wqkv", 3 * size, size, bias=self.attention_bias)
            shapes |= linear(f"{layer}.attn.Wo", size, size, bias=self.attention_bias)
            shapes |= norm(f"{layer}.mlp_norm", size, bias=nb)
            shapes |= linear(f"{layer}.mlp.Wi", 2 * wide, size, bias=self.mlp_bias)
            shapes |= linear(f"{layer}.mlp.Wo", size, wide, bias=self.mlp_bias)
        return shapes | norm("final_norm", size, bias=nb)

    def weights(self) -> Tensors:
        tensors = super().weights()
        for name, values in tensors.items():
            if self.gate_swapped and ".mlp.Wi." in name:
                tensors[name] = np.roll(values, self.intermediate, axis=0)
            if self.biases_zeroed and name.endswith(".bias"):
                tensors[name] = np.zeros_like(values)
        return tensors

    def stored(self, layout: str) -> Tensors:
        if not layout.endswith("masked_lm"):
            return self.weights()
        head = linear("head.dense", self.hidden, self.hidden, bias=False)
        head |= norm("head.norm", self.hidden, bias=self.norm_bias)
        head |= {"decoder.bias": ("bias", (self.vocab,))}
        if layout == "old_masked_lm":  # the tied matrix was written out
            head |= {"decoder.weight": ("table", (self.vocab, self.hidden))}
        extras = {name: self.draw(name, *entry) for name, entry in head.items()}
        return prefixed("model.", self.weights()) | extras


def _windows(spec: TinyModernBert) -> dict[str, TinyModernBert]:
    return {
        "window_one_less": replace(spec, local=spec.local - 2),
        "window_one_more": replace(spec, local=spec.local + 2),
    }


def _bases(spec: TinyModernBert) -> dict[str, TinyModernBert]:
    one, other = spec.global_base, spec.local_base
    return {
        "bases_exchanged": replace(spec, global_base=other, local_base=one),
        "all_on_the_global_base": replace(spec, local_base=one),
        "all_on_the_local_base": replace(spec, global_base=other),
    }


DEFAULT = TinyModernBert(hidden=128, intermediate=96, std=0.15)
EVERY_2 = TinyModernBert(heads=4, layers=5, every=2, global_base=5000, local_base=700, local=16)
BIASES = TinyModernBert(
    layers=3, norm_bias=True, attention_bias=True, mlp_bias=True, eps=1e-3, seed=5
)
SILU = TinyModernBert(
    hidden=256, intermediate=150, layers=2, every=2, act="silu", local=64, std=0.12
)
LISTED = TinyModernBert(
    layer_types=tuple(KINDS[c == "f"] for c in "sffs"), local=32, global_base=8000, local_base=100
)
NULL_BASE = TinyModernBert(local=32, null_local_base=True, local_base=160000.0)

CASES: dict[str, Case] = {
    "modern_default": Case(
        DEFAULT,
        {
            **_windows(DEFAULT),
            **_bases(DEFAULT),
            "every_second_layer_global": replace(DEFAULT, every=2),
            "silu": replace(DEFAULT, act="silu"),
            "gate_swapped": replace(DEFAULT, gate_swapped=True),
        },
        slips=("causal", "no_window"),
        lengths=LONG,
    ),
    "modern_every_2": Case(
        EVERY_2,
        {
            **_windows(EVERY_2),
            **_bases(EVERY_2),
            "every_third_layer_global": replace(EVERY_2, every=3),
            "default_bases": replace(EVERY_2, global_base=160000.0, local_base=10000.0),
        },
        lengths=(*SHORT, 515),
    ),
    "modern_biases": Case(
        BIASES,
        {
            "no_biases": replace(BIASES, biases_zeroed=True),
            "default_eps": replace(BIASES, eps=1e-5),
            "gate_swapped": replace(BIASES, gate_swapped=True),
        },
        layouts=("new", "old"),
    ),
    "modern_silu": Case(
        SILU,
        {"gelu": replace(SILU, act="gelu"), **_windows(SILU)},
        layouts=("new", "old"),
    ),
    "modern_gelu": Case(
        replace(SILU, act="gelu", hidden=64, heads=4),
        {"tanh": replace(SILU, act="gelu_new", hidden=64, heads=4)},
        layouts=("new",),
    ),
    "modern_tanh": Case(
        replace(SILU, act="gelu_pytorch_tanh", hidden=64, heads=4),
        {"erf": replace(SILU, act="gelu", hidden=64, heads=4)},
        layouts=("new",),
    ),
    "modern_layer_types": Case(
        LISTED,
        {
            **_windows(LISTED),
            **_bases(LISTED),
            "every_third_layer_global": replace(LISTED, layer_types=None),
        },
        layouts=("new",),
    ),
    "modern_null_local_base": Case(
        NULL_BASE,
        {"default_local_base": replace(NULL_BASE, local_base=10000.0)},
        layouts=("old",),
    ),
}
