"""Tiny RoBERTa, XLM-RoBERTa and CamemBERT models: BERT with positions counted from the pad id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

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

CLASSES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}


@dataclass(frozen=True)
class TinyRoberta(TinyModel):
    """position_rows: rows of the position table, of which `pad + 1` serve no token.
    rows_shifted: how far the table is moved up, types_dropped: to make wrong variants.
    """

    family: str = "roberta"
    pad: int = 1
    act: str = "gelu"
    types: int = 1
    position_rows: int = 520
    rows_shifted: int = 0
    types_dropped: bool = False

    modes: ClassVar[tuple[str, ...]] = ("cls", "mean")
    layouts: ClassVar[tuple[str, ...]] = ("new", "old", "new_masked_lm", "old_masked_lm")

    def config(self, layout: str) -> dict[str, Any]:
        kind = "ForMaskedLM" if layout.endswith("masked_lm") else "Model"
        said: dict[str, Any] = {
            "architectures": [CLASSES[self.family] + kind],
            "attention_probs_dropout_prob": 0.1,
            "bos_token_id": 0,
            "classifier_dropout": None,
            "eos_token_id": 2,
            "hidden_act": self.act,
            "hidden_dropout_prob": 0.1,
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "layer_norm_eps": self.eps,
            "max_position_embeddings": self.position_rows,
            "model_type": self.family,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": self.pad,
            "type_vocab_size": self.types,
            "use_cache": True,
            "vocab_size": self.vocab,
        }
        if layout.startswith("old"):
            return said | {
                "output_past": True,
                "position_embedding_type": "absolute",
                "torch_dtype": "float32",
                "transformers_version": "4.36.2",
            }
        return said | {
            "add_cross_attention": False,
            "dtype": "float32",
            "is_decoder": False,
            "tie_word_embeddings": True,
            "transformers_version": "5.24.0",
        }

    def shapes(self) -> Shapes:
        size, wide = self.hidden, self.intermediate
        rows = self.position_rows + self.rows_shifted
        shapes: Shapes = {
            "embeddings.word_embeddings.weight": ("table", (self.vocab, size)),
            "embeddings.position_embeddings.weight": ("table", (rows, size)),
            "embeddings.token_type_embeddings.weight": ("table", (self.types, size)),
            **norm("embeddings.LayerNorm", size),
        }
        for i in range(self.layers):
            layer = f"encoder.layer.{i}"
            for part in ("query", "key", "value"):
                shapes |= linear(f"{layer}.attention.self.{part}", size, size)
            shapes |= linear(f"{layer}.attention.output.dense", size, size)
            shapes |= norm(f"{layer}.attention.output.LayerNorm", size)
            shapes |= linear(f"{layer}.intermediate.dense", wide, size)
            shapes |= linear(f"{layer}.output.dense", size, wide)
            shapes |= norm(f"{layer}.output.LayerNorm", size)
        return shapes

    def weights(self) -> Tensors:
        tensors = super().weights()
        if self.rows_shifted:
            name = "embeddings.position_embeddings.weight"
            tensors[name] = tensors[name][self.rows_shifted :]
        if self.types_dropped:
            tensors["embeddings.token_type_embeddings.weight"][0] = 0
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
            extras["roberta.embeddings.position_ids"] = position_ids(self.position_rows)
        return prefixed("roberta.", self.weights()) | extras


ROBERTA = TinyRoberta()
XLM = TinyRoberta(
    family="xlm-roberta",
    hidden=128,
    intermediate=160,
    pad=3,
    position_rows=2052,
    std=0.15,
    layers=2,
)
CAMEMBERT = TinyRoberta(
    family="camembert", hidden=64, heads=4, pad=5, types=2, layers=4, eps=1e-3, seed=2
)
WIDE = TinyRoberta(family="xlm-roberta", hidden=256, pad=0, layers=2, types=2, std=0.12)
FEW_ROWS = TinyRoberta(family="xlm-roberta", position_rows=34, layers=2)


def _shifts(spec: TinyRoberta) -> dict[str, TinyRoberta]:
    return {"positions_one_higher": replace(spec, rows_shifted=1)}


def _pads_inside(pad: int) -> tuple[tuple[int, ...], ...]:
    words = tuple(range(10, 40))
    return (
        (*words[:5], pad, *words[5:9], pad, pad, *words[9:20]),
        (pad, *words[:12]),
        (*words[:12], pad),
        (pad,),
    )


CASES: dict[str, Case] = {
    "roberta": Case(
        ROBERTA,
        {
            **_shifts(ROBERTA),
            "tanh": replace(ROBERTA, act="gelu_new"),
            "no_type_row": replace(ROBERTA, types_dropped=True),
            "eps": replace(ROBERTA, eps=1e-2),
        },
        slips=("positions_from_0", "pads_counted", "causal"),
        lengths=(*SHORT, 515),
        extra_rows=_pads_inside(1),
    ),
    "xlm_roberta": Case(
        XLM,
        {**_shifts(XLM), "relu": replace(XLM, act="relu")},
        slips=("positions_from_0", "pads_counted"),
        lengths=(*SHORT, 515, 2048),
        extra_rows=_pads_inside(3),
    ),
    "camembert": Case(
        CAMEMBERT,
        {**_shifts(CAMEMBERT), "no_type_row": replace(CAMEMBERT, types_dropped=True)},
        slips=("positions_from_0", "pads_counted"),
        extra_rows=_pads_inside(5),
    ),
    "xlm_roberta_pad_0": Case(
        WIDE,
        _shifts(WIDE),
        slips=("positions_from_0", "pads_counted"),
        extra_rows=_pads_inside(0),
        layouts=("new", "old"),
    ),
    "xlm_roberta_few_rows": Case(
        FEW_ROWS,
        _shifts(FEW_ROWS),
        slips=("positions_from_0",),
        lengths=(1, 7, 20, 31, 32),
        layouts=("new",),
    ),
}
