"""Tiny Qwen3 models: causal, grouped heads, a head size of its own, pooled at the last token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from families.tiny_model import (
    END,
    END_ID,
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


@dataclass(frozen=True)
class TinyQwen3(TinyModel):
    """head_dim_said: whether config.json has head_dim. window: sliding_window, used by the layers
    from `full_layers` on where use_window is set. kv_tiled, gate_swapped, biases_zeroed: to make
    wrong variants.
    """

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    head_dim_said: bool = True
    act: str = "silu"
    eps: float = 1e-6
    base: float = 1_000_000.0
    bias: bool = False
    use_window: bool = False
    window: int | None = None
    full_layers: int = 28
    layer_types: tuple[str, ...] | None = None
    kv_tiled: bool = False
    gate_swapped: bool = False
    biases_zeroed: bool = False

    modes: ClassVar[tuple[str, ...]] = ("lasttoken", "mean")
    layouts: ClassVar[tuple[str, ...]] = ("new", "old", "new_causal_lm", "old_causal_lm")

    def row(self, length: int) -> np.ndarray:
        """Ends in the token that the tokenizer adds."""
        ids = super().row(length)
        ids[-1] = END_ID
        return ids

    def kinds(self) -> list[str]:
        """The type of each layer."""
        sliding = self.use_window and self.window is not None
        return list(
            self.layer_types
            or (
                "sliding_attention" if sliding and i >= self.full_layers else "full_attention"
                for i in range(self.layers)
            )
        )

    def config(self, layout: str) -> dict[str, Any]:
        said: dict[str, Any] = {
            "architectures": ["Qwen3ForCausalLM" if layout.endswith("causal_lm") else "Qwen3Model"],
            "attention_bias": self.bias,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "hidden_act": self.act,
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": 32768,
            "max_window_layers": self.full_layers,
            "model_type": "qwen3",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": END_ID,
            "rms_norm_eps": self.eps,
            "sliding_window": self.window,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": self.use_window,
            "vocab_size": self.vocab,
        }
        if self.head_dim_said:
            said["head_dim"] = self.head_dim
        if layout.startswith("old"):
            return said | {
                "rope_scaling": None,
                "rope_theta": self.base,
                "torch_dtype": "float32",
                "transformers_version": "4.51.3",
            }
        return said | {
            "dtype": "float32",
            "layer_types": self.kinds(),
            "rope_parameters": {"rope_theta": self.base, "rope_type": "default"},
            "transformers_version": "5.24.0",
        }

    def shapes(self) -> Shapes:
        size, wide, dim = self.hidden, self.intermediate, self.head_dim
        shapes: Shapes = {"embed_tokens.weight": ("table", (self.vocab, size))}
        for i in range(self.layers):
            layer = f"layers.{i}"
            shapes |= norm(f"{layer}.input_layernorm", size, bias=False)
            for part, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
                name = f"{layer}.self_attn.{part}_proj"
                shapes |= linear(name, heads * dim, size, bias=self.bias)
            shapes |= linear(f"{layer}.self_attn.o_proj", size, self.heads * dim, bias=self.bias)
            for part in "qk":
                shapes |= norm(f"{layer}.self_attn.{part}_norm", dim, bias=False)
            shapes |= norm(f"{layer}.post_attention_layernorm", size, bias=False)
            for part in ("gate", "up"):
                shapes |= linear(f"{layer}.mlp.{part}_proj", wide, size, bias=False)
            shapes |= linear(f"{layer}.mlp.down_proj", size, wide, bias=False)
        return shapes | norm("norm", size, bias=False)

    def weights(self) -> Tensors:
        tensors = super().weights()
        for name, values in tensors.items():
            if self.biases_zeroed and name.endswith(".bias"):
                tensors[name] = np.zeros_like(values)
            if self.kv_tiled and ".q_proj." in name:  # head h reads kv head h % KV, not h // (N/KV)
                order = np.arange(self.heads).reshape(-1, self.kv_heads).T.ravel()
                tensors[name] = _by_head(values, self.head_dim, order)
            if self.kv_tiled and ".o_proj.weight" in name:
                order = np.arange(self.heads).reshape(-1, self.kv_heads).T.ravel()
                tensors[name] = _by_head(values.T, self.head_dim, order).T
        if self.gate_swapped:
            for name in [name for name in tensors if ".gate_proj." in name]:
                other = name.replace("gate_proj", "up_proj")
                tensors[name], tensors[other] = tensors[other], tensors[name]
        return tensors

    def stored(self, layout: str) -> Tensors:
        if not layout.endswith("causal_lm"):
            return self.weights()
        tensors = prefixed("model.", self.weights())
        if layout == "old_causal_lm":  # the tied matrix was written out
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        return tensors


def _by_head(values: np.ndarray, head_dim: int, order: np.ndarray) -> np.ndarray:
    """Heads along the first axis in another order."""
    heads = values.reshape(-1, head_dim, *values.shape[1:])
    return np.ascontiguousarray(heads[order].reshape(values.shape))


MAX_TOKENS = 8
WORDS = tuple(range(10, 60))
TEXTS: dict[str, tuple[int, ...]] = {
    " ".join(f"w{i}" for i in WORDS[:count]): (*WORDS[: min(count, MAX_TOKENS - 1)], END_ID)
    for count in (3, 7, 8, 50)
} | {f"w20 w21 {END}": (20, 21, END_ID, END_ID)}
"""Texts of NUM-26 and their token ids, cut to MAX_TOKENS."""

GROUPED = TinyQwen3()
NOT_SAID = TinyQwen3(head_dim=128, head_dim_said=False, layers=2)
FULL_HEADS = TinyQwen3(kv_heads=4, head_dim=16, seed=5)
WIDE = TinyQwen3(hidden=96, heads=2, kv_heads=1, head_dim=128, layers=2)
BIASED = TinyQwen3(
    hidden=128, heads=3, kv_heads=1, head_dim=64, bias=True, layers=2, eps=1e-3, std=0.15
)
SLIDING = TinyQwen3(use_window=True, window=64, full_layers=1)
LISTED = TinyQwen3(
    use_window=True,
    window=16,
    full_layers=0,
    layer_types=("sliding_attention", "full_attention", "sliding_attention"),
)
WINDOW_OFF = TinyQwen3(window=8, full_layers=0)

CASES: dict[str, Case] = {
    "qwen3_grouped": Case(
        GROUPED,
        {
            "base_10000": replace(GROUPED, base=10000.0),
            "kv_tiled": replace(GROUPED, kv_tiled=True),
            "gate_swapped": replace(GROUPED, gate_swapped=True),
            "gelu": replace(GROUPED, act="gelu"),
            "eps": replace(GROUPED, eps=1e-2),
        },
        slips=(
            "not_causal",
            "no_q_norm",
            "no_k_norm",
            "norms_exchanged",
            "slot_before_the_last",
            "slot_of_the_padding",
            "no_end_token",
        ),
        lengths=(*LONG, 4, 10, 200),
    ),
    "qwen3_head_dim_not_said": Case(
        NOT_SAID, {"kv_tiled": replace(NOT_SAID, kv_tiled=True)}, slips=("no_q_norm",)
    ),
    "qwen3_as_many_kv_heads": Case(
        FULL_HEADS, slips=("not_causal", "no_q_norm"), layouts=("new", "old")
    ),
    "qwen3_wide_heads": Case(
        WIDE, {"base_10000": replace(WIDE, base=10000.0)}, slips=("no_k_norm",), layouts=("new",)
    ),
    "qwen3_biases": Case(
        BIASED,
        {"no_biases": replace(BIASED, biases_zeroed=True)},
        slips=("no_q_norm",),
        layouts=("new", "old"),
    ),
    "qwen3_sliding": Case(
        SLIDING,
        {
            "window_one_less": replace(SLIDING, window=63),
            "window_one_more": replace(SLIDING, window=65),
            "no_window": replace(SLIDING, use_window=False),
            "in_every_layer": replace(SLIDING, full_layers=0),
        },
        lengths=(*SHORT, 515),
        layouts=("new", "old"),
    ),
    "qwen3_layer_types": Case(
        LISTED,
        {
            "window_one_less": replace(LISTED, window=15),
            "window_one_more": replace(LISTED, window=17),
            "in_every_layer": replace(LISTED, layer_types=None),
        },
        layouts=("new",),
    ),
    "qwen3_texts": Case(
        GROUPED,
        slips=("slot_before_the_last", "slot_of_the_padding", "no_end_token", "end_token_twice"),
        lengths=(),
        layouts=("new",),
        extra_rows=tuple(TEXTS.values()),
    ),
    "qwen3_window_off": Case(
        WINDOW_OFF, {"used": replace(WINDOW_OFF, use_window=True)}, layouts=("old",)
    ),
}
