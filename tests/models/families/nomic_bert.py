"""Tiny Nomic BERT models in all spellings of config.json and tensor names.

`transformers` 5 writes its own config.json beside the tensor names of the model's remote code
("saved"), and its own tensor names only when asked to ("native"). "hub" is the remote code's config
as well, of nomic-embed-text; the "masked_lm" layouts are those of models with a language head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from families.tiny_model import LONG, SHORT, Case, Shapes, Tensors, TinyModel, linear, norm

HUB_NAMES = {
    r"^embeddings\.LayerNorm": "emb_ln",
    r"^layers\.": "encoder.layers.",
    r"self_attn\.o_proj": "attn.out_proj",
    r"mlp\.up_proj": "mlp.fc11",
    r"mlp\.gate_proj": "mlp.fc12",
    r"mlp\.down_proj": "mlp.fc2",
    r"post_attention_layernorm": "norm1",
    r"post_mlp_layernorm": "norm2",
}


@dataclass(frozen=True)
class TinyNomicBert(TinyModel):
    """trained: tokens beyond which the rotary base grows, where `factor` is set. fraction: the part
    of a head that is rotated. vocab_said, inner_said: what the remote code's config.json says where
    it pads the table to a multiple of 64 and the MLP to one of 256. The biases exist in the remote
    code only. gate_swapped, types_dropped, biases_zeroed: to make wrong variants.
    """

    vocab: int = 128
    eps: float = 1e-12
    act: str = "silu"
    base: float = 1000.0
    trained: int = 2048
    factor: float | None = None
    fraction: float = 1.0
    types: int = 2
    qkv_bias: bool = False
    mlp_bias: bool = False
    vocab_said: int | None = None
    inner_said: int | None = None
    gate_swapped: bool = False
    types_dropped: bool = False
    biases_zeroed: bool = False

    layouts: ClassVar[tuple[str, ...]] = (
        "saved",
        "native",
        "hub",
        "saved_masked_lm",
        "hub_masked_lm",
    )

    def config(self, layout: str) -> dict[str, Any]:
        return self._hub_config(layout) if layout.startswith("hub") else self._own_config(layout)

    def _own_config(self, layout: str) -> dict[str, Any]:
        scaling = {"rope_type": "dynamic", "factor": self.factor} if self.factor else {}
        return {
            "architectures": [
                "NomicBertForMaskedLM" if layout.endswith("masked_lm") else "NomicBertModel"
            ],
            "attention_probs_dropout_prob": 0.0,
            "bos_token_id": None,
            "classifier_dropout": None,
            "dtype": "float32",
            "eos_token_id": None,
            "head_dim": self.hidden // self.heads,
            "hidden_act": self.act,
            "hidden_dropout_prob": 0.0,
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "layer_norm_eps": self.eps,
            "max_position_embeddings": self.trained,
            "model_type": "nomic_bert",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": 0,
            "rope_parameters": {"rope_theta": self.base, "rope_type": "default", **scaling},
            "transformers_version": "5.24.0",
            "type_vocab_size": self.types,
            "vocab_size": self.vocab,
        }

    def _hub_config(self, layout: str) -> dict[str, Any]:
        return {
            "activation_function": {"silu": "swiglu", "gelu": "geglu"}[self.act],
            "architectures": [
                "NomicBertForPreTraining" if layout.endswith("masked_lm") else "NomicBertModel"
            ],
            "attn_pdrop": 0.0,
            "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.M"},
            "bos_token_id": None,
            "causal": False,
            "dense_seq_output": True,
            "embd_pdrop": 0.0,
            "eos_token_id": None,
            "fused_bias_fc": True,
            "fused_dropout_add_ln": True,
            "initializer_range": 0.02,
            "layer_norm_epsilon": self.eps,
            "max_trained_positions": self.trained,
            "mlp_fc1_bias": self.mlp_bias,
            "mlp_fc2_bias": self.mlp_bias,
            "model_type": "nomic_bert",
            "n_embd": self.hidden,
            "n_head": self.heads,
            "n_inner": self.inner_said or self.intermediate,
            "n_layer": self.layers,
            "n_positions": 8192,
            "pad_vocab_size_multiple": 64,
            "parallel_block": False,
            "parallel_block_tied_norm": False,
            "prenorm": False,
            "qkv_proj_bias": self.qkv_bias,
            "reorder_and_upcast_attn": False,
            "resid_pdrop": 0.0,
            "rotary_emb_base": self.base,
            "rotary_emb_fraction": self.fraction,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
            "rotary_scaling_factor": self.factor,
            "scale_attn_by_inverse_layer_idx": False,
            "scale_attn_weights": True,
            "summary_activation": None,
            "summary_first_dropout": 0.0,
            "summary_proj_to_labels": True,
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "torch_dtype": "float32",
            "transformers_version": "4.34.0",
            "type_vocab_size": self.types,
            "use_cache": True,
            "use_flash_attn": True,
            "use_rms_norm": False,
            "use_xentropy": True,
            "vocab_size": self.vocab_said or self.vocab,
        }

    def shapes(self) -> Shapes:
        size, wide = self.hidden, self.intermediate
        shapes: Shapes = {
            "embeddings.word_embeddings.weight": ("table", (self.vocab, size)),
            "embeddings.token_type_embeddings.weight": ("table", (self.types, size)),
            **norm("embeddings.LayerNorm", size),
        }
        for i in range(self.layers):
            layer = f"layers.{i}"
            for part in "qkvo":
                shapes |= linear(f"{layer}.self_attn.{part}_proj", size, size, bias=self.qkv_bias)
            for part in ("up", "gate"):
                shapes |= linear(f"{layer}.mlp.{part}_proj", wide, size, bias=self.mlp_bias)
            shapes |= linear(f"{layer}.mlp.down_proj", size, wide, bias=self.mlp_bias)
            shapes |= norm(f"{layer}.post_attention_layernorm", size)
            shapes |= norm(f"{layer}.post_mlp_layernorm", size)
        return shapes

    def weights(self) -> Tensors:
        tensors = super().weights()
        if self.types_dropped:
            tensors["embeddings.token_type_embeddings.weight"][0] = 0
        if self.biases_zeroed:
            for name in tensors:
                if name.endswith("_proj.bias"):
                    tensors[name][:] = 0
        if self.gate_swapped:
            for name in [name for name in tensors if ".gate_proj." in name]:
                other = name.replace("gate_proj", "up_proj")
                tensors[name], tensors[other] = tensors[other], tensors[name]
        return tensors

    def stored(self, layout: str) -> Tensors:
        if layout == "native":
            return self.weights()
        tensors = {}
        parts: dict[str, list[np.ndarray]] = {}
        for name, values in self.weights().items():
            for pattern, new in HUB_NAMES.items():
                name = re.sub(pattern, new, name)
            fused = re.sub(r"self_attn\.[qkv]_proj", "attn.Wqkv", name)
            if fused == name:
                tensors[name] = values
            else:
                parts.setdefault(fused, []).append(values)
        tensors |= {name: np.concatenate(three) for name, three in parts.items()}
        if not layout.endswith("masked_lm"):
            return tensors
        head = linear("cls.predictions.transform.dense", self.hidden, self.hidden)
        head |= norm("cls.predictions.transform.layer_norm", self.hidden)
        if layout == "hub_masked_lm":
            head |= {"cls.predictions.decoder.weight": ("table", (self.vocab, self.hidden))}
            head |= {"cls.predictions.decoder.bias": ("bias", (self.vocab,))}
        else:
            head |= {"cls.predictions.bias": ("bias", (self.vocab,))}
        prefix = "bert." if layout == "hub_masked_lm" else "nomic_bert."
        extras = {name: self.draw(name, *entry) for name, entry in head.items()}
        return {prefix + name: values for name, values in tensors.items()} | extras


PLAIN = TinyNomicBert(hidden=128, intermediate=96, layers=2, std=0.15)
DYNAMIC = TinyNomicBert(heads=4, trained=64, factor=10.0, seed=3)
PARTIAL = TinyNomicBert(fraction=0.5, seed=4)
BOTH = TinyNomicBert(fraction=0.5, trained=64, factor=2.0, seed=4)
BIASED = TinyNomicBert(qkv_bias=True, mlp_bias=True, eps=1e-3, seed=6)
PADDED = TinyNomicBert(vocab_said=90, intermediate=256, inner_said=200, layers=2)
WIDE = TinyNomicBert(hidden=256, layers=2, base=10000.0, std=0.12)
OLDER = TinyNomicBert(act="gelu", layers=2, eps=1e-3)

CASES: dict[str, Case] = {
    "nomic_plain": Case(
        PLAIN,
        {
            "base_10000": replace(PLAIN, base=10000.0),
            "gelu": replace(PLAIN, act="gelu"),
            "gate_swapped": replace(PLAIN, gate_swapped=True),
            "no_type_row": replace(PLAIN, types_dropped=True),
            "eps": replace(PLAIN, eps=1e-2),
        },
        slips=("causal",),
        lengths=LONG,
    ),
    "nomic_dynamic": Case(
        DYNAMIC,
        {
            "not_scaled": replace(DYNAMIC, factor=None),
            "factor_4": replace(DYNAMIC, factor=4.0),
            "trained_on_65": replace(DYNAMIC, trained=65),
        },
        slips=("base_of_the_longest",),
        lengths=(*SHORT, 515),
    ),
    "nomic_partial": Case(
        PARTIAL,
        {"all_rotated": replace(PARTIAL, fraction=1.0)},
        layouts=("hub", "hub_masked_lm"),
    ),
    "nomic_dynamic_partial": Case(
        BOTH,
        {
            "all_rotated": replace(BOTH, fraction=1.0),
            "not_scaled": replace(BOTH, factor=None),
        },
        lengths=(*SHORT, 515),
        layouts=("hub",),
    ),
    "nomic_biases": Case(
        BIASED,
        {
            "no_biases": replace(BIASED, biases_zeroed=True),
            "gate_swapped": replace(BIASED, gate_swapped=True),
        },
        layouts=("hub",),
    ),
    "nomic_padded_sizes": Case(
        PADDED, {"base_10000": replace(PADDED, base=10000.0)}, layouts=("hub",)
    ),
    "nomic_wide": Case(WIDE, {"base_1000": replace(WIDE, base=1000.0)}, layouts=("saved", "hub")),
    "nomic_gelu": Case(
        OLDER,
        {"silu": replace(OLDER, act="silu"), "tanh": replace(OLDER, act="gelu_new")},
        layouts=("native", "hub"),
    ),
}
