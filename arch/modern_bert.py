"""ModernBERT (Warner et al. 2024): pre-norm, rotary, GeGLU, global and local attention in turn.

Serves model_type `modernbert`: ModernBERT itself, gte-modernbert, modernbert-embed, and others.
In every third layer a token attends to all others, in the rest to `local_attention // 2` (64) on
each side; each kind of layer has a rotary base of its own. A text has at most
`max_position_embeddings` (8,192) tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import DTypeLike

from arch.activations import ACTIVATIONS
from arch.checkpoint import Checkpoint
from arch.encoder import EncoderModel, packer, require_heads
from arch.json_file import JsonFile
from arch.pooling import Head, read_head
from arch.rope import RopeSettings, pack_rope, read_scaling
from arch.weights import WeightReader, WeightSpec, linear_specs, norm_specs, open_weights
from drivers.protocol import Driver
from drivers.types import Activation, BatchInputs, EmbeddingTable, NormWeights, Rope, T

GLOBAL = "full_attention"
LOCAL = "sliding_attention"

# V vocabulary, E hidden size, Q = 3 E, F intermediate size, G = 2 F.
WORDS = WeightSpec("words", ("embeddings.tok_embeddings.weight",), "VE", "table")
LAYER = "layers.{layer}."


def embedding_specs(cfg: ModernBertConfig) -> tuple[WeightSpec, ...]:
    """The tensors outside the layers."""
    return (
        WORDS,
        *norm_specs("norm", "embeddings.norm", bias=cfg.norm_bias),
        *norm_specs("final_norm", "final_norm", bias=cfg.norm_bias),
    )


def layer_specs(cfg: ModernBertConfig, layer: int) -> tuple[WeightSpec, ...]:
    """The tensors of a layer; the first has no norm before its attention."""
    return (
        *(norm_specs("attn_norm", f"{LAYER}attn_norm", bias=cfg.norm_bias) if layer else ()),
        *linear_specs("qkv", (f"{LAYER}attn.Wqkv",), "QE", bias=cfg.attention_bias),
        *linear_specs("attn_out", (f"{LAYER}attn.Wo",), "EE", bias=cfg.attention_bias),
        *norm_specs("mlp_norm", f"{LAYER}mlp_norm", bias=cfg.norm_bias),
        *linear_specs("mlp_in", (f"{LAYER}mlp.Wi",), "GE", bias=cfg.mlp_bias, role="gated"),
        *linear_specs("mlp_out", (f"{LAYER}mlp.Wo",), "EF", bias=cfg.mlp_bias),
    )


IGNORED = ("head.*", "decoder.*", "classifier.*", "*.inv_freq")


@dataclass(frozen=True)
class ModernBertConfig:
    """The keys of config.json that shape the forward pass.

    layer_types: GLOBAL or LOCAL for each layer. ropes: the rotary settings of each type.
    half_window: the keys that a local layer sees on each side of a token.
    """

    vocab_size: int
    max_positions: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    act: Activation
    norm_eps: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    layer_types: tuple[str, ...]
    ropes: Mapping[str, RopeSettings]
    half_window: int


def read_config(checkpoint: Checkpoint) -> ModernBertConfig:
    """Raises CheckpointError for a missing key and for what this family does not do."""
    config = checkpoint.config
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    require_heads(checkpoint, hidden_size, num_heads)
    return ModernBertConfig(
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings", default=8192),
        hidden_size=hidden_size,
        num_heads=num_heads,
        intermediate_size=config.integer("intermediate_size"),
        act=config.choice("hidden_activation", ACTIVATIONS, default="gelu"),
        norm_eps=config.number("norm_eps", default=1e-5),
        norm_bias=config.boolean("norm_bias", default=False),
        attention_bias=config.boolean("attention_bias", default=False),
        mlp_bias=config.boolean("mlp_bias", default=False),
        layer_types=_read_layer_types(config, config.integer("num_hidden_layers")),
        ropes=_read_ropes(config, hidden_size // num_heads),
        half_window=config.integer("local_attention", default=128) // 2,
    )


def _read_layer_types(config: JsonFile, layers: int) -> tuple[str, ...]:
    """Global or local for each layer: listed, or every n-th layer from 0 global."""
    if config.data.get("layer_types") is not None:
        return config.names("layer_types", layers, (GLOBAL, LOCAL))
    every = config.integer("global_attn_every_n_layers", default=3)
    return tuple(LOCAL if layer % every else GLOBAL for layer in range(layers))


def _read_ropes(config: JsonFile, head_dim: int) -> dict[str, RopeSettings]:
    """The bases of both types, in the old spelling or the new one.

    A null `local_rope_theta` means the global base, as `transformers` 4 takes it.
    """
    if config.object("rope_scaling") is not None:
        raise config.error("rope_scaling", "null")
    theta = {GLOBAL: config.number("global_rope_theta", default=160_000.0)}
    null_local = config.data.get("local_rope_theta", 0) is None
    default_local = theta[GLOBAL] if null_local else 10_000.0
    theta[LOCAL] = config.number("local_rope_theta", default=default_local)
    by_type = config.object("rope_parameters")
    if by_type is not None:
        by_type.known_keys(theta)
        for kind in theta:
            said = by_type.object(kind)
            if said is not None:
                read_scaling(said, dynamic=False)
                theta[kind] = said.number("rope_theta")
    return {kind: RopeSettings(base, head_dim) for kind, base in theta.items()}


@dataclass(frozen=True)
class LayerWeights(Generic[T]):
    """One layer's weights on the device. Layer 0 has no attn_norm: the embeddings' norm serves."""

    attn_norm: NormWeights[T] | None
    qkv: T  # (3E, E)
    qkv_bias: T | None  # (3E,)
    rope: Rope[T]
    half_window: int | None
    attn_out: T  # (E, E)
    attn_out_bias: T | None  # (E,)
    mlp_norm: NormWeights[T]
    mlp_in: T  # (2F, E)
    mlp_in_bias: T | None  # (2F,)
    mlp_out: T  # (E, F)
    mlp_out_bias: T | None  # (E,)


def encoder_layer(
    d: Driver[T], x: T, w: LayerWeights[T], batch: BatchInputs[T], cfg: ModernBertConfig
) -> T:
    """One pre-norm encoder layer over unpadded tokens: (T, E) -> (T, E), in the dtype of x."""
    h = x if w.attn_norm is None else d.add_norm(x, None, w.attn_norm)  # (T, E)
    ctx = d.attention(
        d.linear(h, w.qkv, w.qkv_bias),  # (T, 3E)
        batch,
        num_heads=cfg.num_heads,
        rope=w.rope,
        window_left=w.half_window,
        window_right=w.half_window,
    )  # (T, E)
    x = d.linear(ctx, w.attn_out, w.attn_out_bias, residual=x)  # (T, E)
    h = d.add_norm(x, None, w.mlp_norm)  # (T, E)
    h = d.gated_linear(h, w.mlp_in, w.mlp_in_bias, act=cfg.act)  # (T, F)
    return d.linear(h, w.mlp_out, w.mlp_out_bias, residual=x)  # (T, E)


class ModernBert(EncoderModel[T]):
    """A ModernBERT encoder with its pooling."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        cfg: ModernBertConfig,
        words: EmbeddingTable[T],
        norm: NormWeights[T],
        layers: tuple[LayerWeights[T], ...],
        final_norm: NormWeights[T],
        head: Head,
        dtype: np.dtype[Any],
    ) -> None:
        super().__init__(
            checkpoint, head, dtype, max_tokens=cfg.max_positions, vocab_size=cfg.vocab_size
        )
        self.cfg = cfg
        self._words = words
        self._norm = norm
        self._layers = layers
        self._final_norm = final_norm

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, driver: Driver[T], dtype: DTypeLike, dim: int | None
    ) -> ModernBert[T]:
        """Pack the folder's weights. Raises CheckpointError, naming file and tensor."""
        cfg = read_config(checkpoint)
        head = read_head(checkpoint, cfg.hidden_size, dim)
        reader = WeightReader(
            checkpoint.folder,
            open_weights(checkpoint.folder),
            anchor=WORDS.names[0],
        )
        hidden, wide = cfg.hidden_size, cfg.intermediate_size
        sizes = {"V": cfg.vocab_size, "E": hidden, "Q": 3 * hidden, "F": wide, "G": 2 * wide}
        pack = packer(reader, driver, dtype, sizes, checkpoint)
        emb = pack(embedding_specs(cfg))
        ropes = {
            kind: pack_rope(driver, cfg.ropes[kind], cfg.max_positions)
            for kind in set(cfg.layer_types)
        }
        layers = tuple(
            _layer_weights(pack(layer_specs(cfg, layer), layer), cfg, ropes[kind], kind)
            for layer, kind in enumerate(cfg.layer_types)
        )
        reader.finish(IGNORED)
        return cls(
            checkpoint,
            cfg,
            EmbeddingTable(emb["words"], "input_ids"),
            NormWeights(emb["norm"], emb.get("norm_bias"), cfg.norm_eps),
            layers,
            NormWeights(emb["final_norm"], emb.get("final_norm_bias"), cfg.norm_eps),
            head,
            np.dtype(dtype),
        )

    def encode(self, driver: Driver[T], batch: BatchInputs[T]) -> T:
        x = driver.embed(batch, [self._words], self._norm)  # (T, E)
        for layer in self._layers:
            x = encoder_layer(driver, x, layer, batch, self.cfg)
        return driver.add_norm(x, None, self._final_norm)  # (T, E)


def _layer_weights(
    w: Mapping[str, T], cfg: ModernBertConfig, rope: Rope[T], kind: str
) -> LayerWeights[T]:
    attn_norm = None
    if "attn_norm" in w:
        attn_norm = NormWeights(w["attn_norm"], w.get("attn_norm_bias"), cfg.norm_eps)
    return LayerWeights(
        attn_norm=attn_norm,
        qkv=w["qkv"],
        qkv_bias=w.get("qkv_bias"),
        rope=rope,
        half_window=cfg.half_window if kind == LOCAL else None,
        attn_out=w["attn_out"],
        attn_out_bias=w.get("attn_out_bias"),
        mlp_norm=NormWeights(w["mlp_norm"], w.get("mlp_norm_bias"), cfg.norm_eps),
        mlp_in=w["mlp_in"],
        mlp_in_bias=w.get("mlp_in_bias"),
        mlp_out=w["mlp_out"],
        mlp_out_bias=w.get("mlp_out_bias"),
    )
