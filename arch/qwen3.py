"""Qwen3 (Yang et al. 2025) as an embedding model: a causal decoder, its last token pooled.

Serves model_type `qwen3`: Qwen3-Embedding and what is tuned from it. A token attends to itself and
those before it, where the config slides a window to the last of them; positions are rotary, q and k
have a norm for each head, and several query heads share a key head. A text has at most
`max_position_embeddings` (32,768) tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import DTypeLike

from arch.activations import ACTIVATIONS
from arch.checkpoint import Checkpoint
from arch.encoder import EncoderModel, packer, require_config
from arch.errors import CheckpointError
from arch.json_file import JsonFile
from arch.pooling import Head, read_head
from arch.rope import RopeSettings, pack_rope, read_rope
from arch.weights import WeightReader, WeightSpec, linear_specs, norm_specs, open_weights
from drivers.dtypes import BFLOAT16, FLOAT32
from drivers.protocol import Driver
from drivers.types import Activation, BatchInputs, EmbeddingTable, NormWeights, QkNorm, Rope, T

GLOBAL = "full_attention"
LOCAL = "sliding_attention"

# V vocabulary, E hidden size, Q = N D, K = KV D, D head_dim, F intermediate size.
WORDS = WeightSpec("words", ("embed_tokens.weight",), "VE", "table")
EMBEDDING_SPECS = (WORDS, *norm_specs("final_norm", "norm", bias=False))

LAYER = "layers.{layer}."
QKV = tuple(f"{LAYER}self_attn.{part}_proj" for part in "qkv")
GATE_UP = tuple(f"{LAYER}mlp.{part}_proj" for part in ("gate", "up"))


def layer_specs(cfg: Qwen3Config) -> tuple[WeightSpec, ...]:
    """The tensors of a layer."""
    attn = f"{LAYER}self_attn."
    return (
        *norm_specs("attn_norm", f"{LAYER}input_layernorm", bias=False),
        *linear_specs("qkv", QKV, ("QE", "KE", "KE"), bias=cfg.attention_bias),
        *norm_specs("q_norm", f"{attn}q_norm", "D", bias=False),
        *norm_specs("k_norm", f"{attn}k_norm", "D", bias=False),
        *linear_specs("attn_out", (f"{attn}o_proj",), "EQ", bias=cfg.attention_bias),
        *norm_specs("mlp_norm", f"{LAYER}post_attention_layernorm", bias=False),
        *linear_specs("mlp_in", GATE_UP, "FE", bias=False, role="gated"),
        *linear_specs("mlp_out", (f"{LAYER}mlp.down_proj",), "EF", bias=False),
    )


IGNORED = ("lm_head.*", "*.inv_freq")


@dataclass(frozen=True)
class Qwen3Config:
    """The keys of config.json that shape the forward pass.

    windows: for each layer the tokens that a query sees, itself counted; None for all before it.
    """

    vocab_size: int
    max_positions: int
    hidden_size: int
    num_heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    act: Activation
    norm_eps: float
    attention_bias: bool
    windows: tuple[int | None, ...]
    rope: RopeSettings


def read_config(checkpoint: Checkpoint) -> Qwen3Config:
    """Raises CheckpointError for a missing key and for what this family does not do."""
    require_config(checkpoint, only={"is_causal": [True], "use_bidirectional_attention": [False]})
    config = checkpoint.config
    if "cls" in checkpoint.pool_modes:
        raise CheckpointError(
            checkpoint.root,
            "pools the first token ('cls'), which in a causal model sees no other; wanted "
            "'lasttoken' or 'mean'",
        )
    num_heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=num_heads)
    if num_heads % kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of the {num_heads} heads")
    head_dim = config.integer("head_dim", default=128)
    if head_dim % 2:
        raise config.error("head_dim", "an even number, for rotary positions")
    return Qwen3Config(
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings"),
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        act=config.choice("hidden_act", ACTIVATIONS, default="silu"),
        norm_eps=config.number("rms_norm_eps", default=1e-6),
        attention_bias=config.boolean("attention_bias", default=False),
        windows=_read_windows(config, config.integer("num_hidden_layers")),
        rope=read_rope(config, head_dim, default_theta=10_000.0),
    )


def _read_windows(config: JsonFile, layers: int) -> tuple[int | None, ...]:
    """The window of each layer: by `layer_types`, or all layers from `max_window_layers` on."""
    slides = config.boolean("use_sliding_window", default=False)
    slides = slides and config.data.get("sliding_window", 0) is not None
    window = config.integer("sliding_window", default=4096) if slides else None
    if config.data.get("layer_types") is None:
        first = config.integer("max_window_layers", minimum=0, default=28)
        return tuple(window if layer >= first else None for layer in range(layers))
    kinds = config.names("layer_types", layers, (GLOBAL, LOCAL))
    if LOCAL in kinds and window is None:
        raise config.error("use_sliding_window", f"true, where a layer's type is '{LOCAL}'")
    return tuple(window if kind == LOCAL else None for kind in kinds)


@dataclass(frozen=True)
class LayerWeights(Generic[T]):
    """One decoder layer's weights on the device."""

    attn_norm: NormWeights[T]
    qkv: T  # ((N + 2 KV) D, E)
    qkv_bias: T | None  # ((N + 2 KV) D,)
    qk_norm: QkNorm[T]
    rope: Rope[T]
    window_left: int | None
    attn_out: T  # (E, N D)
    attn_out_bias: T | None  # (E,)
    mlp_norm: NormWeights[T]
    mlp_in: T  # (2F, E), the gate first
    mlp_out: T  # (E, F)


def decoder_layer(
    d: Driver[T], x: T, w: LayerWeights[T], batch: BatchInputs[T], cfg: Qwen3Config
) -> T:
    """One pre-norm decoder layer over unpadded tokens: (T, E) -> (T, E), in the dtype of x."""
    h = d.add_norm(x, None, w.attn_norm)  # (T, E)
    ctx = d.attention(
        d.linear(h, w.qkv, w.qkv_bias),  # (T, (N + 2 KV) D)
        batch,
        num_heads=cfg.num_heads,
        kv_heads=cfg.kv_heads,
        head_dim=cfg.head_dim,
        rope=w.rope,
        qk_norm=w.qk_norm,
        window_left=w.window_left,
        causal=True,
    )  # (T, N D)
    x = d.linear(ctx, w.attn_out, w.attn_out_bias, residual=x)  # (T, E)
    h = d.add_norm(x, None, w.mlp_norm)  # (T, E)
    h = d.gated_linear(h, w.mlp_in, act=cfg.act)  # (T, F)
    return d.linear(h, w.mlp_out, residual=x)  # (T, E)


class Qwen3(EncoderModel[T]):
    """A Qwen3 decoder with its pooling."""

    fits = (FLOAT32, BFLOAT16)  # its activations pass float16's range: it was trained in bfloat16

    def __init__(
        self,
        checkpoint: Checkpoint,
        cfg: Qwen3Config,
        words: EmbeddingTable[T],
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
        self._layers = layers
        self._final_norm = final_norm

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, driver: Driver[T], dtype: DTypeLike, dim: int | None
    ) -> Qwen3[T]:
        """Pack the folder's weights. Raises CheckpointError, naming file and tensor."""
        cfg = read_config(checkpoint)
        head = read_head(checkpoint, cfg.hidden_size, dim)
        reader = WeightReader(
            checkpoint.folder, open_weights(checkpoint.folder), anchor=WORDS.names[0]
        )
        sizes = {
            "V": cfg.vocab_size,
            "E": cfg.hidden_size,
            "Q": cfg.num_heads * cfg.head_dim,
            "K": cfg.kv_heads * cfg.head_dim,
            "D": cfg.head_dim,
            "F": cfg.intermediate_size,
        }
        pack = packer(reader, driver, dtype, sizes, checkpoint)
        emb = pack(EMBEDDING_SPECS)
        rope = pack_rope(driver, cfg.rope, cfg.max_positions)
        layers = tuple(
            _layer_weights(pack(layer_specs(cfg), layer), cfg, rope, window)
            for layer, window in enumerate(cfg.windows)
        )
        reader.finish(IGNORED)
        words = EmbeddingTable(emb["words"], "input_ids")
        final_norm = NormWeights(emb["final_norm"], None, cfg.norm_eps, "rms")
        return cls(checkpoint, cfg, words, layers, final_norm, head, np.dtype(dtype))

    def encode(self, driver: Driver[T], batch: BatchInputs[T]) -> T:
        x = driver.embed(batch, [self._words])  # (T, E)
        for layer in self._layers:
            x = decoder_layer(driver, x, layer, batch, self.cfg)
        return driver.add_norm(x, None, self._final_norm)  # (T, E)


def _layer_weights(
    w: Mapping[str, T], cfg: Qwen3Config, rope: Rope[T], window: int | None
) -> LayerWeights[T]:
    return LayerWeights(
        attn_norm=NormWeights(w["attn_norm"], None, cfg.norm_eps, "rms"),
        qkv=w["qkv"],
        qkv_bias=w.get("qkv_bias"),
        qk_norm=QkNorm(w["q_norm"], w["k_norm"], cfg.norm_eps),
        rope=rope,
        window_left=None if window is None else window - 1,
        attn_out=w["attn_out"],
        attn_out_bias=w.get("attn_out_bias"),
        mlp_norm=NormWeights(w["mlp_norm"], None, cfg.norm_eps, "rms"),
        mlp_in=w["mlp_in"],
        mlp_out=w["mlp_out"],
    )
