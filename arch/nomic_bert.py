"""NomicBERT (Nussbaum et al. 2024): BERT with rotary positions, a gated MLP and a fused Wqkv.

Serves model_type `nomic_bert`, in the spelling of the hub's own code (`n_embd`, `Wqkv`, `fc11`) and
in that of `transformers` 5. With dynamic NTK scaling a row's base comes from that row's own length,
so that no vector depends on its batch; `transformers` takes the batch's longest row. Every token
attends to all others. A text has at most `n_positions` (8,192) tokens, in the new spelling
`max_position_embeddings` times the scaling's factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import DTypeLike

from arch.activations import ACTIVATIONS
from arch.checkpoint import Checkpoint
from arch.encoder import EncoderModel, packer, require_config, require_heads
from arch.json_file import JsonFile
from arch.pooling import Head, read_head
from arch.rope import RopeSettings, pack_rope, pack_row_ropes, read_rope
from arch.weights import WeightReader, WeightSpec, linear_specs, norm_specs, open_weights
from drivers.protocol import Driver
from drivers.types import Activation, BatchInputs, EmbeddingTable, NormWeights, Rope, T

GATES: Mapping[str, Activation] = {"swiglu": "silu", "geglu": "gelu"}

# V vocabulary, Y token types, E hidden size, Q = 3 E, F intermediate size.
WORDS = WeightSpec("words", ("embeddings.word_embeddings.weight",), "VE", "table")
TYPES = WeightSpec("types", ("embeddings.token_type_embeddings.weight",), "YE", "table")


@dataclass(frozen=True)
class Layout:
    """Tensor names of one spelling; `{layer}` stands for the layer's number.

    qkv: one fused tensor or three. gate: the half of the MLP that is activated; up: the other one.
    """

    norm: str
    qkv: tuple[str, ...]
    attn_out: str
    attn_norm: str
    gate: str
    up: str
    mlp_out: str
    mlp_norm: str

    def embedding_specs(self, cfg: NomicBertConfig) -> tuple[WeightSpec, ...]:
        types = (TYPES,) if cfg.type_vocab_size else ()
        return (WORDS, *types, *norm_specs("norm", self.norm, bias=True))

    def layer_specs(self, cfg: NomicBertConfig) -> tuple[WeightSpec, ...]:
        qkv_rows = "Q" if len(self.qkv) == 1 else "E"
        return (
            *linear_specs("qkv", self.qkv, qkv_rows + "E", bias=cfg.attention_bias),
            *linear_specs("attn_out", (self.attn_out,), "EE", bias=cfg.attention_bias),
            *norm_specs("attn_norm", self.attn_norm, bias=True),
            *linear_specs("mlp_in", (self.gate, self.up), "FE", bias=cfg.mlp_in_bias, role="gated"),
            *linear_specs("mlp_out", (self.mlp_out,), "EF", bias=cfg.mlp_out_bias),
            *norm_specs("mlp_norm", self.mlp_norm, bias=True),
        )


HUB = Layout(
    norm="emb_ln",
    qkv=("encoder.layers.{layer}.attn.Wqkv",),
    attn_out="encoder.layers.{layer}.attn.out_proj",
    attn_norm="encoder.layers.{layer}.norm1",
    gate="encoder.layers.{layer}.mlp.fc12",
    up="encoder.layers.{layer}.mlp.fc11",
    mlp_out="encoder.layers.{layer}.mlp.fc2",
    mlp_norm="encoder.layers.{layer}.norm2",
)
NATIVE = Layout(
    norm="embeddings.LayerNorm",
    qkv=tuple(f"layers.{{layer}}.self_attn.{part}_proj" for part in "qkv"),
    attn_out="layers.{layer}.self_attn.o_proj",
    attn_norm="layers.{layer}.post_attention_layernorm",
    gate="layers.{layer}.mlp.gate_proj",
    up="layers.{layer}.mlp.up_proj",
    mlp_out="layers.{layer}.mlp.down_proj",
    mlp_norm="layers.{layer}.post_mlp_layernorm",
)

IGNORED = ("pooler.*", "cls.*", "lm_head.*", "*.inv_freq", "embeddings.position_ids")


@dataclass(frozen=True)
class NomicBertConfig:
    """The keys of config.json that shape the forward pass."""

    vocab_size: int
    type_vocab_size: int
    max_positions: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    act: Activation
    norm_eps: float
    attention_bias: bool
    mlp_in_bias: bool
    mlp_out_bias: bool
    rope: RopeSettings


def read_config(checkpoint: Checkpoint) -> NomicBertConfig:
    """Raises CheckpointError for a missing key and for what this family does not do."""
    if "n_embd" in checkpoint.config.data:
        return _read_hub_config(checkpoint)
    config = checkpoint.config
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    require_heads(checkpoint, hidden_size, num_heads)
    require_config(checkpoint, only={"head_dim": [hidden_size // num_heads]})
    trained = config.integer("max_position_embeddings", default=2048)
    rope = read_rope(config, hidden_size // num_heads, default_theta=1000.0, dynamic_from=trained)
    return NomicBertConfig(
        vocab_size=config.integer("vocab_size"),
        type_vocab_size=config.integer("type_vocab_size", default=2),
        max_positions=int(trained * (rope.ntk_factor or 1)),
        hidden_size=hidden_size,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        intermediate_size=config.integer("intermediate_size"),
        act=config.choice("hidden_act", ACTIVATIONS, default="silu"),
        norm_eps=config.number("layer_norm_eps", default=1e-12),
        attention_bias=False,
        mlp_in_bias=False,
        mlp_out_bias=False,
        rope=rope,
    )


def _read_hub_config(checkpoint: Checkpoint) -> NomicBertConfig:
    """The config of the hub's own code; keys that it shares with GPT-2 and does not use are odd."""
    require_config(
        checkpoint,
        only={
            "prenorm": [False],
            "parallel_block": [False],
            "causal": [False],
            "use_rms_norm": [False],
            "norm_mlp": [False],
            "moe_every_n_layers": [0],
            "rotary_emb_interleaved": [False],
            "rotary_emb_scale_base": [],
            "scale_attn_weights": [True],
        },
    )
    config = checkpoint.config
    hidden_size = config.integer("n_embd")
    num_heads = config.integer("n_head")
    require_heads(checkpoint, hidden_size, num_heads, key="n_head")
    vocab_size = config.integer("vocab_size")
    multiple = config.integer("pad_vocab_size_multiple", default=1)
    inner = config.integer("n_inner", default=4 * hidden_size)
    return NomicBertConfig(
        vocab_size=-(-vocab_size // multiple) * multiple,
        type_vocab_size=config.integer("type_vocab_size", minimum=0, default=0),
        max_positions=config.integer("n_positions"),
        hidden_size=hidden_size,
        num_layers=config.integer("n_layer"),
        num_heads=num_heads,
        intermediate_size=inner,
        act=config.choice("activation_function", GATES),
        norm_eps=config.number("layer_norm_epsilon", default=1e-5),
        attention_bias=config.boolean("qkv_proj_bias", default=True),
        mlp_in_bias=config.boolean("mlp_fc1_bias", default=True),
        mlp_out_bias=config.boolean("mlp_fc2_bias", default=True),
        rope=_read_hub_rope(config, hidden_size // num_heads),
    )


def _read_hub_rope(config: JsonFile, head_dim: int) -> RopeSettings:
    fraction = config.number("rotary_emb_fraction")
    rotary_dim = int(head_dim * fraction)
    if not 0 < fraction <= 1 or rotary_dim % 2 or rotary_dim < 2:
        wanted = f"a fraction that leaves an even part of a head of {head_dim}"
        raise config.error("rotary_emb_fraction", wanted)
    theta = config.number("rotary_emb_base", default=10_000.0)
    if config.data.get("rotary_scaling_factor") is None:
        return RopeSettings(theta, rotary_dim)
    trained = config.integer("max_trained_positions", default=2048)
    return RopeSettings(theta, rotary_dim, config.number("rotary_scaling_factor"), trained)


@dataclass(frozen=True)
class LayerWeights(Generic[T]):
    """One layer's weights on the device."""

    qkv: T  # (3E, E)
    qkv_bias: T | None  # (3E,)
    attn_out: T  # (E, E)
    attn_out_bias: T | None  # (E,)
    attn_norm: NormWeights[T]
    mlp_in: T  # (2F, E), the half that is activated first
    mlp_in_bias: T | None  # (2F,)
    mlp_out: T  # (E, F)
    mlp_out_bias: T | None  # (E,)
    mlp_norm: NormWeights[T]


def encoder_layer(
    d: Driver[T],
    x: T,
    w: LayerWeights[T],
    rope: Rope[T],
    batch: BatchInputs[T],
    cfg: NomicBertConfig,
) -> T:
    """One post-norm encoder layer over unpadded tokens: (T, E) -> (T, E), in the dtype of x."""
    qkv = d.linear(x, w.qkv, w.qkv_bias)  # (T, 3E)
    ctx = d.attention(qkv, batch, num_heads=cfg.num_heads, rope=rope)  # (T, E)
    x = d.add_norm(d.linear(ctx, w.attn_out, w.attn_out_bias), x, w.attn_norm)  # (T, E)
    h = d.gated_linear(x, w.mlp_in, w.mlp_in_bias, act=cfg.act)  # (T, F)
    return d.add_norm(d.linear(h, w.mlp_out, w.mlp_out_bias), x, w.mlp_norm)  # (T, E)


class NomicBert(EncoderModel[T]):
    """A NomicBERT encoder with its pooling."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        cfg: NomicBertConfig,
        tables: tuple[EmbeddingTable[T], ...],
        norm: NormWeights[T],
        layers: tuple[LayerWeights[T], ...],
        rope: Rope[T],
        head: Head,
        dtype: np.dtype[Any],
    ) -> None:
        super().__init__(
            checkpoint, head, dtype, max_tokens=cfg.max_positions, vocab_size=cfg.vocab_size
        )
        self.cfg = cfg
        self._tables = tables
        self._norm = norm
        self._layers = layers
        self._rope = rope

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, driver: Driver[T], dtype: DTypeLike, dim: int | None
    ) -> NomicBert[T]:
        """Pack the folder's weights. Raises CheckpointError, naming file and tensor."""
        cfg = read_config(checkpoint)
        head = read_head(checkpoint, cfg.hidden_size, dim)
        reader = WeightReader(
            checkpoint.folder,
            open_weights(checkpoint.folder),
            anchor=WORDS.names[0],
        )
        layout = NATIVE if reader.rows(f"{HUB.norm}.weight") is None else HUB
        sizes = {
            "V": cfg.vocab_size,
            "Y": cfg.type_vocab_size,
            "E": cfg.hidden_size,
            "Q": 3 * cfg.hidden_size,
            "F": _mlp_width(reader, layout, cfg),
        }
        pack = packer(reader, driver, dtype, sizes, checkpoint)
        emb = pack(layout.embedding_specs(cfg))
        layers = tuple(
            _layer_weights(pack(layout.layer_specs(cfg), layer), cfg)
            for layer in range(cfg.num_layers)
        )
        reader.finish(IGNORED)
        tables = [EmbeddingTable(emb["words"], "input_ids")]
        if "types" in emb:
            tables.append(EmbeddingTable(emb["types"], "token_type_ids"))
        norm = NormWeights(emb["norm"], emb["norm_bias"], cfg.norm_eps)
        rope = pack_rope(driver, cfg.rope, cfg.max_positions)
        return cls(checkpoint, cfg, tuple(tables), norm, layers, rope, head, np.dtype(dtype))

    def encode(self, driver: Driver[T], batch: BatchInputs[T]) -> T:
        rope = self._rope
        if self.cfg.rope.scales(batch.max_seq):
            rope = pack_row_ropes(driver, self.cfg.rope, batch.seq_lengths)  # (B, S, R / 2)
        x = driver.embed(batch, self._tables, self._norm)  # (T, E)
        for layer in self._layers:
            x = encoder_layer(driver, x, layer, rope, batch, self.cfg)
        return x


def _mlp_width(reader: WeightReader, layout: Layout, cfg: NomicBertConfig) -> int:
    """F: the config's, or as stored where the hub's code rounded it up to a multiple of 256."""
    rounded = -(-cfg.intermediate_size // 256) * 256
    stored = reader.rows(f"{layout.up}.weight".format(layer=0))
    return rounded if layout is HUB and stored == rounded else cfg.intermediate_size


def _layer_weights(w: Mapping[str, T], cfg: NomicBertConfig) -> LayerWeights[T]:
    return LayerWeights(
        qkv=w["qkv"],
        qkv_bias=w.get("qkv_bias"),
        attn_out=w["attn_out"],
        attn_out_bias=w.get("attn_out_bias"),
        attn_norm=NormWeights(w["attn_norm"], w["attn_norm_bias"], cfg.norm_eps),
        mlp_in=w["mlp_in"],
        mlp_in_bias=w.get("mlp_in_bias"),
        mlp_out=w["mlp_out"],
        mlp_out_bias=w.get("mlp_out_bias"),
        mlp_norm=NormWeights(w["mlp_norm"], w["mlp_norm_bias"], cfg.norm_eps),
    )
