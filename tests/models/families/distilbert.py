"""Tiny DistilBERT models: BERT without token types, with names and config keys of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from families.tiny_model import SHORT, Case, Shapes, Tensors, TinyModel, linear, norm, prefixed


@dataclass(frozen=True)
class TinyDistilBert(TinyModel):
    """rows_shifted: how far the position table is moved up, to make a wrong variant."""

    eps: float = 1e-12  # fixed in this family
    act: str = "gelu"
    position_rows: int = 515
    sinusoidal: bool = False
    rows_shifted: int = 0

    modes: ClassVar[tuple[str, ...]] = ("cls", "mean")
    layouts: ClassVar[tuple[str, ...]] = ("new", "old", "new_masked_lm", "old_masked_lm")

    def config(self, layout: str) -> dict[str, Any]:
        said: dict[str, Any] = {
            "activation": self.act,
            "architectures": [
                "DistilBertForMaskedLM" if layout.endswith("masked_lm") else "DistilBertModel"
            ],
            "attention_dropout": 0.1,
            "dim": self.hidden,
            "dropout": 0.1,
            "hidden_dim": self.intermediate,
            "initializer_range": 0.02,
            "max_position_embeddings": self.position_rows,
            "model_type": "distilbert",
            "n_heads": self.heads,
            "n_layers": self.layers,
            "pad_token_id": 0,
            "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2,
            "sinusoidal_pos_embds": self.sinusoidal,
            "vocab_size": self.vocab,
        }
        if layout.startswith("old"):
            return said | {
                "output_past": True,
                "tie_weights_": True,
                "torch_dtype": "float32",
                "transformers_version": "4.36.2",
            }
        return said | {
            "bos_token_id": None,
            "dtype": "float32",
            "eos_token_id": None,
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
        }
        for i in range(self.layers):
            layer = f"transformer.layer.{i}"
            for part in "qkv":
                shapes |= linear(f"{layer}.attention.{part}_lin", size, size)
            shapes |= linear(f"{layer}.attention.out_lin", size, size)
            shapes |= norm(f"{layer}.sa_layer_norm", size)
            shapes |= linear(f"{layer}.ffn.lin1", wide, size)
            shapes |= linear(f"{layer}.ffn.lin2", size, wide)
            shapes |= norm(f"{layer}.output_layer_norm", size)
        return shapes

    def weights(self) -> Tensors:
        tensors = super().weights()
        if self.rows_shifted:
            name = "embeddings.position_embeddings.weight"
            tensors[name] = tensors[name][self.rows_shifted :]
        return tensors

    def stored(self, layout: str) -> Tensors:
        if not layout.endswith("masked_lm"):
            return self.weights()
        head = linear("vocab_transform", self.hidden, self.hidden)
        head |= norm("vocab_layer_norm", self.hidden)
        head |= {"vocab_projector.bias": ("bias", (self.vocab,))}
        if layout == "old_masked_lm":  # the tied matrix was written out
            head |= {"vocab_projector.weight": ("table", (self.vocab, self.hidden))}
        extras = {name: self.draw(name, *entry) for name, entry in head.items()}
        return prefixed("distilbert.", self.weights()) | extras


DISTIL = TinyDistilBert()
NARROW = TinyDistilBert(heads=4, layers=6, seed=4)
TALL = TinyDistilBert(hidden=128, intermediate=160, std=0.15, act="relu", layers=2)
WIDE = TinyDistilBert(hidden=256, std=0.12, layers=2, sinusoidal=True)

CASES: dict[str, Case] = {
    "distilbert": Case(
        DISTIL,
        {
            "tanh": replace(DISTIL, act="gelu_new"),
            "positions_one_higher": replace(DISTIL, rows_shifted=1),
        },
        slips=("causal",),
        lengths=(*SHORT, 515),
    ),
    "distilbert_narrow_heads": Case(NARROW, {"heads": replace(NARROW, heads=2)}, layouts=("new",)),
    "distilbert_relu": Case(TALL, {"gelu": replace(TALL, act="gelu")}, layouts=("new", "old")),
    "distilbert_sinusoidal": Case(
        WIDE, {"positions_one_higher": replace(WIDE, rows_shifted=1)}, layouts=("new",)
    ),
}
