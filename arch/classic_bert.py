"""BERT (Devlin et al. 2018) and its line: learned positions, norm after each sublayer.

Serves `bert` (MiniLM, BGE, E5, GTE of the first generation, arctic-embed, mxbai), `roberta`,
`xlm-roberta` and `camembert` (Liu et al. 2019; positions start after the padding id), `distilbert`
(Sanh et al. 2019; no token types) and `mpnet` (Song et al. 2020; relative positions beside them).
Every token attends to all others. A text has at most as many tokens as there are position rows (512
in most checkpoints), those up to the padding id left out where positions start after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
from numpy.typing import DTypeLike, NDArray

from arch.activations import ACTIVATIONS
from arch.checkpoint import Checkpoint
from arch.encoder import EncoderModel, packer, require_config, require_heads
from arch.json_file import JsonFile
from arch.pooling import Head, read_head
from arch.relative_position import BUCKETS, relative_buckets
from arch.weights import WeightReader, WeightSpec, linear_specs, norm_specs, open_weights
from drivers.protocol import Driver
from drivers.types import Activation, BatchInputs, EmbeddingTable, Encoding, NormWeights, T

# V vocabulary, P position rows, Y token types, E hidden size, F intermediate size, K buckets.
WORDS = WeightSpec("words", ("embeddings.word_embeddings.weight",), "VE", "table")
POSITIONS = WeightSpec("positions", ("embeddings.position_embeddings.weight",), "PE", "table")
TYPES = WeightSpec("types", ("embeddings.token_type_embeddings.weight",), "YE", "table")
RELATIVE = WeightSpec("relative", ("encoder.relative_attention_bias.weight",), "KN", "table")

IGNORED = ("pooler.*", "embeddings.position_ids", "cls.*", "lm_head.*", "vocab_*", "classifier.*")
RENAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Layout:
    """How one member of the line spells its config keys and tensors, and what it has.

    offset: whether positions start after the padding id. relative: whether a bias by distance is
    added to the scores. pad_id, norm_eps: fixed in the family, whatever the config says. The other
    fields are config keys, and tensor names that follow `layer`.
    """

    has_types: bool = True
    offset: bool = False
    relative: bool = False
    pad_id: int | None = None
    norm_eps: float | None = None
    hidden_size: str = "hidden_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    intermediate_size: str = "intermediate_size"
    act: str = "hidden_act"
    layer: str = "encoder.layer.{layer}."
    qkv: tuple[str, str, str] = ("self.query", "self.key", "self.value")
    attention: str = "attention."
    attn_out: str = "attention.output.dense"
    attn_norm: str = "attention.output.LayerNorm"
    mlp_in: str = "intermediate.dense"
    mlp_out: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"

    def embedding_specs(self) -> tuple[WeightSpec, ...]:
        types = (TYPES,) if self.has_types else ()
        return (WORDS, *types, POSITIONS, *norm_specs("norm", "embeddings.LayerNorm", bias=True))

    def layer_specs(self) -> tuple[WeightSpec, ...]:
        at = self.layer
        return (
            *linear_specs(
                "qkv", tuple(f"{at}{self.attention}{p}" for p in self.qkv), "EE", bias=True
            ),
            *linear_specs("attn_out", (f"{at}{self.attn_out}",), "EE", bias=True),
            *norm_specs("attn_norm", f"{at}{self.attn_norm}", bias=True),
            *linear_specs("mlp_in", (f"{at}{self.mlp_in}",), "FE", bias=True),
            *linear_specs("mlp_out", (f"{at}{self.mlp_out}",), "EF", bias=True),
            *norm_specs("mlp_norm", f"{at}{self.mlp_norm}", bias=True),
        )


BERT = Layout()
ROBERTA = Layout(offset=True)
DISTILBERT = Layout(
    has_types=False,
    norm_eps=1e-12,
    hidden_size="dim",
    num_layers="n_layers",
    num_heads="n_heads",
    intermediate_size="hidden_dim",
    act="activation",
    layer="transformer.layer.{layer}.",
    qkv=("q_lin", "k_lin", "v_lin"),
    attn_out="attention.out_lin",
    attn_norm="sa_layer_norm",
    mlp_in="ffn.lin1",
    mlp_out="ffn.lin2",
    mlp_norm="output_layer_norm",
)
MPNET = Layout(
    has_types=False,
    offset=True,
    relative=True,
    pad_id=1,
    qkv=("attn.q", "attn.k", "attn.v"),
    attn_out="attention.attn.o",
    attn_norm="attention.LayerNorm",
)
LAYOUTS: Mapping[str, Layout] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
}


@dataclass(frozen=True)
class ClassicBertConfig:
    """The keys of config.json that shape the forward pass.

    first_position: the position of a row's first token; the id before it is the padding's.
    """

    vocab_size: int
    max_positions: int
    first_position: int
    type_vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    act: Activation
    norm_eps: float


def read_config(checkpoint: Checkpoint, layout: Layout) -> ClassicBertConfig:
    """Raises CheckpointError for a missing key and for a variant that is not done here."""
    require_config(
        checkpoint,
        only={
            "position_embedding_type": ["absolute"],
            "is_decoder": [False],
            "add_cross_attention": [False],
            "pruned_heads": [{}],
            "relative_attention_num_buckets": [BUCKETS],
        },
    )
    config = checkpoint.config
    hidden_size = config.integer(layout.hidden_size)
    num_heads = config.integer(layout.num_heads)
    require_heads(checkpoint, hidden_size, num_heads, layout.num_heads)
    pad_id = _read_pad_id(config, layout)
    return ClassicBertConfig(
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings", minimum=pad_id + 2),
        first_position=pad_id + 1,
        type_vocab_size=config.integer("type_vocab_size", default=2),
        hidden_size=hidden_size,
        num_layers=config.integer(layout.num_layers),
        num_heads=num_heads,
        intermediate_size=config.integer(layout.intermediate_size),
        act=config.choice(layout.act, ACTIVATIONS, default="gelu"),
        norm_eps=layout.norm_eps or config.number("layer_norm_eps", default=1e-12),
    )


def _read_pad_id(config: JsonFile, layout: Layout) -> int:
    """The position before the first; -1 where positions count from 0."""
    if not layout.offset:
        return -1
    if layout.pad_id is not None:
        return layout.pad_id
    if config.data.get("pad_token_id", 1) is None:
        raise config.error("pad_token_id", "an id: positions are counted from it")
    return int(config.integer("pad_token_id", minimum=0, default=1))


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
    d: Driver[T],
    x: T,
    w: LayerWeights[T],
    position_bias: T | None,
    batch: BatchInputs[T],
    cfg: ClassicBertConfig,
) -> T:
    """One post-norm encoder layer over unpadded tokens: (T, E) -> (T, E), in the dtype of x."""
    qkv = d.linear(x, w.qkv, w.qkv_bias)  # (T, 3E)
    ctx = d.attention(qkv, batch, num_heads=cfg.num_heads, position_bias=position_bias)  # (T, E)
    x = d.add_norm(d.linear(ctx, w.attn_out, w.attn_out_bias), x, w.attn_norm)  # (T, E)
    h = d.linear(x, w.mlp_in, w.mlp_in_bias, act=cfg.act)  # (T, F)
    return d.add_norm(d.linear(h, w.mlp_out, w.mlp_out_bias), x, w.mlp_norm)  # (T, E)


class ClassicBert(EncoderModel[T]):
    """An encoder of the BERT line with its pooling."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        cfg: ClassicBertConfig,
        tables: tuple[EmbeddingTable[T], ...],
        norm: NormWeights[T],
        position_bias: T | None,
        layers: tuple[LayerWeights[T], ...],
        head: Head,
        dtype: np.dtype[Any],
    ) -> None:
        """position_bias: (N, 2 P - 1) float32 by distance, or None."""
        super().__init__(
            checkpoint,
            head,
            dtype,
            max_tokens=cfg.max_positions - cfg.first_position,
            vocab_size=cfg.vocab_size,
        )
        self.cfg = cfg
        self._tables = tables
        self._norm = norm
        self._position_bias = position_bias
        self._layers = layers

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, driver: Driver[T], dtype: DTypeLike, dim: int | None
    ) -> ClassicBert[T]:
        """Pack the folder's weights. Raises CheckpointError, naming file and tensor."""
        layout = LAYOUTS[checkpoint.model_type]
        cfg = read_config(checkpoint, layout)
        head = read_head(checkpoint, cfg.hidden_size, dim)
        reader = WeightReader(
            checkpoint.folder,
            open_weights(checkpoint.folder),
            anchor=WORDS.names[0],
            renames=RENAMES,
        )
        sizes = {
            "V": cfg.vocab_size,
            "P": cfg.max_positions,
            "Y": cfg.type_vocab_size,
            "E": cfg.hidden_size,
            "F": cfg.intermediate_size,
            "K": BUCKETS,
            "N": cfg.num_heads,
        }
        pack = packer(reader, driver, dtype, sizes, checkpoint)
        emb = pack(layout.embedding_specs())
        position_bias = None
        if layout.relative:
            relative = reader.read([RELATIVE], sizes, np.float32)["relative"]  # (K, N)
            by_distance = relative[relative_buckets(cfg.max_positions)].T  # (N, 2P - 1)
            position_bias = driver.from_host(np.ascontiguousarray(by_distance))
        layers = tuple(
            _layer_weights(pack(layout.layer_specs(), layer), cfg)
            for layer in range(cfg.num_layers)
        )
        reader.finish(IGNORED)
        tables = [EmbeddingTable(emb["words"], "input_ids")]
        if "types" in emb:
            tables.append(EmbeddingTable(emb["types"], "token_type_ids"))
        tables.append(EmbeddingTable(emb["positions"], "position_ids"))
        norm = NormWeights(emb["norm"], emb["norm_bias"], cfg.norm_eps)
        return cls(
            checkpoint, cfg, tuple(tables), norm, position_bias, layers, head, np.dtype(dtype)
        )

    def forward(self, driver: Driver[T], encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        if self.cfg.first_position:
            encodings = [offset_positions(e, self.cfg.first_position) for e in encodings]
        return super().forward(driver, encodings)

    def encode(self, driver: Driver[T], batch: BatchInputs[T]) -> T:
        x = driver.embed(batch, self._tables, self._norm)  # (T, E)
        for layer in self._layers:
            x = encoder_layer(driver, x, layer, self._position_bias, batch, self.cfg)
        return x


def offset_positions(encoding: Encoding, first: int) -> Encoding:
    """The same row with positions from `first` on, as fairseq counts them.

    The id before `first` is the padding's: within a text it takes that position and is not counted.
    """
    real = encoding.input_ids != first - 1  # (S,)
    positions = np.where(real, np.cumsum(real) + first - 1, first - 1)
    return replace(encoding, position_ids=positions.astype(np.int32))


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
