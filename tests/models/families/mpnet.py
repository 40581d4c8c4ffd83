"""Tiny MPNet models: a bias by distance in every layer's scores, positions counted from 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from families.tiny_model import (
    SHORT,
    Case,
    Shapes,
    Tensors,
    TinyModel,
    linear,
    norm,
    position_ids,
    prefixed,
)

BUCKETS = 32
BIAS = "encoder.relative_attention_bias.weight"


@dataclass(frozen=True)
class TinyMPNet(TinyModel):
    """pad: what config.json says; positions count from 2 all the same. bias_zeroed, bias_mirrored,
    rows_shifted: to make wrong variants.
    """

    act: str = "gelu"
    pad: int = 1
    position_rows: int = 520
    bias_zeroed: bool = False
    bias_mirrored: bool = False
    rows_shifted: int = 0

    modes: ClassVar[tuple[str, ...]] = ("cls", "mean")
    layouts: ClassVar[tuple[str, ...]] = ("new", "old", "new_masked_lm", "old_masked_lm")

    def config(self, layout: str) -> dict[str, Any]:
        said: dict[str, Any] = {
            "architectures": ["MPNetForMaskedLM" if layout.endswith("masked_lm") else "MPNetModel"],
            "attention_probs_dropout_prob": 0.1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "hidden_act": self.act,
            "hidden_dropout_prob": 0.1,
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "layer_norm_eps": self.eps,
            "max_position_embeddings": self.position_rows,
            "model_type": "mpnet",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": self.pad,
            "relative_attention_num_buckets": BUCKETS,
            "vocab_size": self.vocab,
        }
        if layout.startswith("old"):
            return said | {"torch_dtype": "float32", "transformers_version": "4.8.2"}
        return said | {
            "dtype": "float32",
            "tie_word_embeddings": True,
            "transformers_version": "5.24.0",
        }

    def shapes(self) -> Shapes:
        size, wide = self.hidden, self.intermediate
        rows = self.position_rows + self.rows_shifted
        shapes: Shapes = {
            "embeddings.word_embeddings.weight": ("table", (self.vocab, size)),
            "embeddings.position_embeddings.weight": ("table", (rows, size)),
            **norm("embeddings.LayerNorm", size),
            BIAS: ("table", (BUCKETS, self.heads)),
        }
        for i in range(self.layers):
            layer = f"encoder.layer.{i}"
            for part in "qkvo":
                shapes |= linear(f"{layer}.attention.attn.{part}", size, size)
            shapes |= norm(f"{layer}.attention.LayerNorm", size)
            shapes |= linear(f"{layer}.intermediate.dense", wide, size)
            shapes |= linear(f"{layer}.output.dense", size, wide)
            shapes |= norm(f"{layer}.output.LayerNorm", size)
        return shapes

    def weights(self) -> Tensors:
        tensors = super().weights()
        if self.bias_zeroed:
            tensors[BIAS] = np.zeros_like(tensors[BIAS])
        if self.bias_mirrored:
            tensors[BIAS] = np.roll(tensors[BIAS], BUCKETS // 2, axis=0)
        if self.rows_shifted:
            name = "embeddings.position_embeddings.weight"
            tensors[name] = tensors[name][self.rows_shifted :]
        return tensors

    def stored(self, layout: str) -> Tensors:
        size = self.hidden
        if not layout.endswith("masked_lm"):
            extras = linear("pooler.dense", size, size)
            return self.weights() | {k: self.draw(k, *entry) for k, entry in extras.items()}
        head = linear("lm_head.dense", size, size) | norm("lm_head.layer_norm", size)
        head |= {"lm_head.bias": ("bias", (self.vocab,))}
        if layout == "old_masked_lm":  # the tied matrix was written out
            head |= {"lm_head.decoder.weight": ("table", (self.vocab, size))}
            head |= {"lm_head.decoder.bias": ("bias", (self.vocab,))}
        extras = {name: self.draw(name, *entry) for name, entry in head.items()}
        if layout == "old_masked_lm":
            extras["mpnet.embeddings.position_ids"] = position_ids(self.position_rows)
        return prefixed("mpnet.", self.weights()) | extras


MPNET = TinyMPNet()
NARROW = TinyMPNet(heads=4, layers=4, eps=1e-3, seed=8)
TALL = TinyMPNet(hidden=128, intermediate=160, std=0.15, layers=2)
WIDE = TinyMPNet(hidden=256, std=0.12, layers=2)

OTHER_PAD = replace(MPNET, pad=0, layers=2)

PADS_INSIDE = ((10, 11, 1, 12, 13, 1, 1, 14, 15, 16), (1, 10, 11, 12))


def _biases(spec: TinyMPNet) -> dict[str, TinyMPNet]:
    return {
        "no_bias": replace(spec, bias_zeroed=True),
        "bias_of_the_other_side": replace(spec, bias_mirrored=True),
    }


CASES: dict[str, Case] = {
    "mpnet": Case(
        MPNET,
        {
            **_biases(MPNET),
            "tanh": replace(MPNET, act="gelu_new"),
            "positions_one_higher": replace(MPNET, rows_shifted=1),
        },
        slips=("positions_from_0", "pads_counted"),
        lengths=(*SHORT, 515),
        extra_rows=PADS_INSIDE,
    ),
    "mpnet_other_pad": Case(
        OTHER_PAD,
        slips=("positions_from_0", "pads_counted"),
        extra_rows=PADS_INSIDE,
        layouts=("new",),
    ),
    "mpnet_narrow_heads": Case(NARROW, _biases(NARROW), layouts=("new",)),
    "mpnet_tall_heads": Case(TALL, _biases(TALL), layouts=("new", "old")),
    "mpnet_wide_heads": Case(WIDE, _biases(WIDE), layouts=("new",)),
}
