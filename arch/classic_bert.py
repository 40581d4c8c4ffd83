"""BERT (Devlin et al. 2018): learned positions, token types, norm after each sublayer.

Serves every checkpoint of model_type `bert`: MiniLM, BGE, E5, GTE (first generation), arctic-embed,
mxbai and BERT itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import DTypeLike

from arch.checkpoint import Checkpoint
from arch.encoder import EncoderModel, packer, require_config, require_heads
from arch.pooling import Head, read_head
from arch.weights import WeightReader, WeightSpec, open_weights
from drivers.protocol import Driver
from drivers.types import Activation, BatchInputs, EmbeddingTable, NormWeights, T

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

# V vocabulary, P position rows, Y token types, E hidden size, F intermediate size.
EMBEDDING_SPECS = (
    WeightSpec("words", ("embeddings.word_embeddings.weight",), "VE", "table"),
    WeightSpec("positions", ("embeddings.position_embeddings.weight",), "PE", "table"),
    WeightSpec("types", ("embeddings.token_type_embeddings.weight",), "YE", "table"),
    WeightSpec("norm_weight", ("embeddings.LayerNorm.weight",), "E", "vector"),
    WeightSpec("norm_bias", ("embeddings.LayerNorm.bias",), "E", "vector"),
)

LAYER = "encoder.layer.{layer}."
QKV = tuple(f"{LAYER}attention.self.{part}" for part in ("query", "key", "value"))

LAYER_SPECS = (
    WeightSpec("qkv", tuple(f"{name}.weight" for name in QKV), "EE", "linear"),
    WeightSpec("qkv_bias", tuple(f"{name}.bias" for name in QKV), "E", "vector"),
    WeightSpec("attn_out", (f"{LAYER}attention.output.dense.weight",), "EE", "linear"),
    WeightSpec("attn_out_bias", (f"{LAYER}attention.output.dense.bias",), "E", "vector"),
    WeightSpec("attn_norm", (f"{LAYER}attention.output.LayerNorm.weight",), "E", "vector"),
    WeightSpec("attn_norm_bias", (f"{LAYER}attention.output.LayerNorm.bias",), "E", "vector"),
    WeightSpec("mlp_in", (f"{LAYER}intermediate.dense.weight",), "FE", "linear"),
    WeightSpec("mlp_in_bias", (f"{LAYER}intermediate.dense.bias",), "F", "vector"),
    WeightSpec("mlp_out", (f"{LAYER}output.dense.weight",), "EF", "linear"),
    WeightSpec("mlp_out_bias", (f"{LAYER}output.dense.bias",), "E", "vector"),
    WeightSpec("mlp_norm", (f"{LAYER}output.LayerNorm.weight",), "E", "vector"),
    WeightSpec("mlp_norm_bias", (f"{LAYER}output.LayerNorm.bias",), "E", "vector"),
)

IGNORED = ("pooler.*", "embeddings.position_ids", "cls.*", "lm_head.*")
RENAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class ClassicBertConfig:
    """The keys of config.json that shape the forward pass."""

    vocab_size: int
    max_positions: int
    type_vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    act: Activation
    norm_eps: float


def read_config(checkpoint: Checkpoint) -> ClassicBertConfig:
    """Raises CheckpointError for a missing key and for a variant of BERT that is not this one."""
    require_config(
        checkpoint,
        only={
            "position_embedding_type": ["absolute"],
            "is_decoder": [False],
            "add_cross_attention": [False],
            "pruned_heads": [{}],
        },
    )
    config = checkpoint.config
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    require_heads(checkpoint, hidden_size, num_heads)
    return ClassicBertConfig(
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings"),
        type_vocab_size=config.integer("type_vocab_size", default=2),
        hidden_size=hidden_size,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        intermediate_size=config.integer("intermediate_size"),
        act=config.choice("hidden_act", ACTIVATIONS, default="gelu"),
        norm_eps=config.number("layer_norm_eps", default=1e-12),
    )


@dataclass(frozen=True)
class LayerWeights(Generic[T]):
    """One encoder layer's weights on the device."""

    qkv: T  # (3E, E)
    qkv_bias: T  # (3E,)
    attn_out: T  # (E, E)
    attn_out_bias: T  # (E,)
    attn_norm: NormWeights[T]
    mlp_in: T  # (F, E)
    mlp_in_bias: T  # (F,)
    mlp_out: T  # (E, F)
    mlp_out_bias: T  # (E,)
    mlp_norm: NormWeights[T]


def encoder_layer(
    d: Driver[T], x: T, w: LayerWeights[T], batch: BatchInputs[T], cfg: ClassicBertConfig
) -> T:
    """One post-norm encoder layer over unpadded tokens: (T, E) -> (T, E), in the dtype of x."""
    qkv = d.linear(x, w.qkv, w.qkv_bias)  # (T, 3E)
    ctx = d.attention(qkv, batch, num_heads=cfg.num_heads)  # (T, E)
    x = d.add_norm(d.linear(ctx, w.attn_out, w.attn_out_bias), x, w.attn_norm)  # (T, E)
    h = d.linear(x, w.mlp_in, w.mlp_in_bias, act=cfg.act)  # (T, F)
    return d.add_norm(d.linear(h, w.mlp_out, w.mlp_out_bias), x, w.mlp_norm)  # (T, E)


class ClassicBert(EncoderModel[T]):
    """A BERT encoder with its pooling."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        cfg: ClassicBertConfig,
        tables: tuple[EmbeddingTable[T], ...],
        norm: NormWeights[T],
        layers: tuple[LayerWeights[T], ...],
        head: Head,
        dtype: np.dtype[Any],
    ) -> None:
        super().__init__(checkpoint, head, dtype)
        self.cfg = cfg
        self._tables = tables
        self._norm = norm
        self._layers = layers

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, driver: Driver[T], dtype: DTypeLike, dim: int | None
    ) -> ClassicBert[T]:
        """Pack the folder's weights. Raises CheckpointError, naming file and tensor."""
        cfg = read_config(checkpoint)
        head = read_head(checkpoint, cfg.hidden_size, dim)
        reader = WeightReader(
            checkpoint.folder,
            open_weights(checkpoint.folder),
            anchor="embeddings.word_embeddings.weight",
            renames=RENAMES,
        )
        sizes = {
            "V": cfg.vocab_size,
            "P": cfg.max_positions,
            "Y": cfg.type_vocab_size,
            "E": cfg.hidden_size,
            "F": cfg.intermediate_size,
        }
        pack = packer(reader, driver, dtype, sizes, checkpoint)
        emb = pack(EMBEDDING_SPECS)
        layers = tuple(
            _layer_weights(pack(LAYER_SPECS, layer), cfg) for layer in range(cfg.num_layers)
        )
        reader.finish(IGNORED)
        tables = (
            EmbeddingTable(emb["words"], "input_ids"),
            EmbeddingTable(emb["types"], "token_type_ids"),
            EmbeddingTable(emb["positions"], "position_ids"),
        )
        norm = NormWeights(emb["norm_weight"], emb["norm_bias"], cfg.norm_eps)
        return cls(checkpoint, cfg, tables, norm, layers, head, np.dtype(dtype))

    @property
    def max_tokens(self) -> int:
        return self.cfg.max_positions

    @property
    def vocab_size(self) -> int:
        return self.cfg.vocab_size

    def encode(self, driver: Driver[T], batch: BatchInputs[T]) -> T:
        x = driver.embed(batch, self._tables, self._norm)  # (T, E)
        for layer in self._layers:
            x = encoder_layer(driver, x, layer, batch, self.cfg)
        return x


def _layer_weights(w: Mapping[str, T], cfg: ClassicBertConfig) -> LayerWeights[T]:
    return LayerWeights(
        qkv=w["qkv"],
        qkv_bias=w["qkv_bias"],
        attn_out=w["attn_out"],
        attn_out_bias=w["attn_out_bias"],
        attn_norm=NormWeights(w["attn_norm"], w["attn_norm_bias"], cfg.norm_eps),
        mlp_in=w["mlp_in"],
        mlp_in_bias=w["mlp_in_bias"],
        mlp_out=w["mlp_out"],
        mlp_out_bias=w["mlp_out_bias"],
        mlp_norm=NormWeights(w["mlp_norm"], w["mlp_norm_bias"], cfg.norm_eps),
    )
