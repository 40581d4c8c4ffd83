"""Tiny BERT model folders, written without torch: what tests load and goldens are made from.

Every tensor has a random stream of its own (`np.random.RandomState`, whose stream is frozen, seeded
by the spec's seed and the tensor's name), and only `random_sample` is drawn from it, which is exact
on every platform: the same spec gives the same bytes everywhere, and a changed option leaves the
other tensors as they were.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

Stored = Literal["F32", "F16", "BF16", "mixed"]
Spelling = Literal["old", "new"]

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(
    word
    for line in (
        "alpha a and about an cat dog find for hello house in is it long longer of one river",
        "rivers run search sentence short somewhat ten that the three time to two was with word",
        "world",
    )
    for word in line.split()
)
CASED_WORDS = ("Hello", "River")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789ßé中文サ\u0307"
MARKS = ".,:;!?'-"
VOCAB = tuple(
    dict.fromkeys(
        [*SPECIALS, *WORDS, *CASED_WORDS, *MARKS]
        + [prefix + c for prefix in ("", "##") for c in CHARACTERS]
        + ["##ing"]
    )
)
IDS = {token: i for i, token in enumerate(VOCAB)}

MODULE_TYPES: dict[Spelling, dict[str, str]] = {
    "old": {
        name: f"sentence_transformers.models.{name}"
        for name in ("Transformer", "Pooling", "Dense", "Normalize")
    },
    "new": {
        "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
        "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        "Dense": "sentence_transformers.base.modules.dense.Dense",
        "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    },
}

OLD_POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclass(frozen=True)
class DenseSpec:
    """One Dense module."""

    in_features: int
    out_features: int
    act: str = "torch.nn.modules.activation.Tanh"
    bias: bool = True


@dataclass(frozen=True)
class TinyBert:
    """All options of a folder; the defaults are a plain mean-pooling model that loads anywhere.

    modules: spelling of modules.json's type strings, None for a folder without modules.json.
    types_row: which row of the token-type table stands at row 0 ("none" makes it zeros), and
    positions_from: which position row stands at row 0; both serve to make wrong variants.
    says_case: whether tokenizer_config.json has do_lower_case. strip_accents: in tokenizer.json.
    """

    seed: int = 7
    hidden: int = 32
    heads: int = 2
    layers: int = 2
    intermediate: int = 52
    act: str = "gelu"
    eps: float = 1e-12
    positions: int = 64
    types: int = 2
    types_row: Literal["first", "second", "none"] = "first"
    positions_from: int = 0
    std: float = 0.17

    prefix: str = ""
    extras: tuple[tuple[str, tuple[int, ...]], ...] = ()
    old_norm_names: bool = False
    stored: Stored = "F32"
    shards: int = 1
    padded_header: bool = True

    modules: Spelling | None = "old"
    pooling: tuple[str, ...] = ("mean",)
    pooling_spelling: Spelling = "old"
    include_prompt: bool | None = None
    dense: tuple[DenseSpec, ...] = ()
    normalize: bool = False
    prompts: Mapping[str, str] | None = None
    default_prompt_name: str | None = None
    transformer_folder: str = ""

    cased: bool = False
    says_case: bool = True
    strip_accents: bool | None = None
    max_seq_length: int | None = None
    do_lower_case: bool | None = None
    baked_truncation: int | None = None
    baked_padding: int | None = None
    tokenizer_config: Mapping[str, Any] = field(
        default_factory=lambda: {"tokenizer_class": "BertTokenizer"}
    )


def build(folder: Path, spec: TinyBert) -> Path:
    """Write the folder; returns it."""
    inside = folder / spec.transformer_folder
    inside.mkdir(parents=True, exist_ok=True)
    write_json(inside / "config.json", bert_config(spec))
    _write_weights(inside, spec)
    tiny_tokenizer(spec).save(str(inside / "tokenizer.json"))
    said_case = {"do_lower_case": not spec.cased} if spec.says_case else {}
    tokenizer_config = {**said_case, **spec.tokenizer_config}
    tokenizer_config |= {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    tokenizer_config |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}
    write_json(inside / "tokenizer_config.json", tokenizer_config)
    transformer = {"max_seq_length": spec.max_seq_length, "do_lower_case": spec.do_lower_case}
    transformer = {key: value for key, value in transformer.items() if value is not None}
    if transformer:
        write_json(inside / "sentence_bert_config.json", transformer)
    if spec.modules is not None:
        _write_modules(folder, spec, spec.modules)
    if spec.prompts is not None:
        said = {"prompts": dict(spec.prompts), "default_prompt_name": spec.default_prompt_name}
        write_json(folder / "config_sentence_transformers.json", said)
    return folder


def bert_config(spec: TinyBert) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(VOCAB),
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.intermediate,
        "hidden_act": spec.act,
        "max_position_embeddings": spec.positions,
        "type_vocab_size": spec.types,
        "layer_norm_eps": spec.eps,
        "pad_token_id": 0,
    }


def bert_weights(spec: TinyBert) -> dict[str, np.ndarray]:
    """Float32 tensors by transformers' own names, without prefix."""
    size, wide = spec.hidden, spec.intermediate
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCAB), size),
        "embeddings.position_embeddings.weight": (spec.positions + spec.positions_from, size),
        "embeddings.token_type_embeddings.weight": (spec.types, size),
        **_norm_shapes("embeddings", size),
    }
    for i in range(spec.layers):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            shapes |= _linear_shapes(f"{layer}.attention.self.{name}", size, size)
        shapes |= _linear_shapes(f"{layer}.attention.output.dense", size, size)
        shapes |= _norm_shapes(f"{layer}.attention.output", size)
        shapes |= _linear_shapes(f"{layer}.intermediate.dense", wide, size)
        shapes |= _linear_shapes(f"{layer}.output.dense", size, wide)
        shapes |= _norm_shapes(f"{layer}.output", size)
    shapes |= _linear_shapes("pooler.dense", size, size)
    weights = {name: _draw(spec, name, shape) for name, shape in shapes.items()}
    name = "embeddings.position_embeddings.weight"
    weights[name] = weights[name][spec.positions_from :]
    types = weights["embeddings.token_type_embeddings.weight"]
    if spec.types_row == "none":
        types[0] = 0
    elif spec.types_row == "second":
        types[[0, 1]] = types[[1, 0]]
    return weights


def dense_weights(spec: TinyBert, position: int) -> dict[str, np.ndarray]:
    """Float32 tensors of the Dense module at `position` among the Dense modules."""
    module = spec.dense[position]
    name = f"dense.{position}.linear"
    shape = (module.out_features, module.in_features)
    tensors = {"linear.weight": _draw(spec, f"{name}.weight", shape)}
    if module.bias:
        tensors["linear.bias"] = _draw(spec, f"{name}.bias", (module.out_features,))
    return tensors


def weights_hash(spec: TinyBert) -> str:
    """sha256 over all float32 tensors that a spec stands for."""
    digest = hashlib.sha256()
    tensors = bert_weights(spec)
    for position in range(len(spec.dense)):
        tensors |= {f"{position}.{k}": v for k, v in dense_weights(spec, position).items()}
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name], dtype="<f4").tobytes())
    return digest.hexdigest()


def tiny_tokenizer(spec: TinyBert) -> Tokenizer:
    """A WordPiece tokenizer over VOCAB, with the limits that the spec bakes in."""
    fast = Tokenizer(WordPiece(IDS, unk_token="[UNK]", max_input_chars_per_word=100))
    fast.normalizer = BertNormalizer(lowercase=not spec.cased, strip_accents=spec.strip_accents)
    fast.pre_tokenizer = BertPreTokenizer()
    fast.decoder = WordPieceDecoder()
    fast.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    fast.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", IDS["[CLS]"]), ("[SEP]", IDS["[SEP]"])],
    )
    if spec.baked_truncation is not None:
        fast.enable_truncation(spec.baked_truncation)
    if spec.baked_padding is not None:
        fast.enable_padding(length=spec.baked_padding, pad_id=0, pad_token="[PAD]")
    return fast


# ---- files


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON object on disk."""
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **changes})


def drop_json_keys(path: Path, *keys: str) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {key: value for key, value in kept.items() if key not in keys})


def encode_tensor(values: np.ndarray, dtype: str) -> bytes:
    """A float32 array's bytes as safetensors stores them; BF16 is rounded to nearest, ties even."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(values, dtype={"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_safetensors(
    path: Path,
    tensors: Iterable[tuple[str, str, tuple[int, ...], bytes]],
    *,
    padded_header: bool = True,
) -> None:
    """(name, dtype, shape, bytes) rows as one file. padded_header: data starts at 8-byte steps."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, dtype, shape, data in tensors:
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 if padded_header else 1 - len(text) % 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], stored: Stored = "F32") -> None:
    """Float32 arrays as one safetensors file, in a stored dtype."""
    write_safetensors(path, _rows(tensors, stored))


def stored_tensors(spec: TinyBert) -> dict[str, np.ndarray]:
    """Float32 tensors under the names that the file of a spec has, extras included."""
    tensors = {}
    for name, values in bert_weights(spec).items():
        if spec.old_norm_names:
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            name = name.replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[spec.prefix + name] = values
    for name, shape in spec.extras:
        tensors[name] = _draw(spec, name, shape)
    return tensors


def _write_weights(folder: Path, spec: TinyBert) -> None:
    tensors = stored_tensors(spec)
    if spec.shards == 1:
        rows = _rows(tensors, spec.stored)
        path = folder / "model.safetensors"
        write_safetensors(path, rows, padded_header=spec.padded_header)
        return
    weight_map = {}
    names = sorted(tensors)
    for shard in range(spec.shards):
        file = f"model-{shard + 1:05}-of-{spec.shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard :: spec.shards]}
        write_safetensors(folder / file, _rows(part, spec.stored))
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def _write_modules(root: Path, spec: TinyBert, spelling: Spelling) -> None:
    listed = [("Transformer", spec.transformer_folder), ("Pooling", "1_Pooling")]
    write_json(root / "1_Pooling" / "config.json", _pooling_config(spec))
    for position, module in enumerate(spec.dense):
        folder = f"{position + 2}_Dense"
        listed.append(("Dense", folder))
        said = {"in_features": module.in_features, "out_features": module.out_features}
        said |= {"bias": module.bias, "activation_function": module.act}
        write_json(root / folder / "config.json", said)
        write_tensors(root / folder / "model.safetensors", dense_weights(spec, position))
    if spec.normalize:  # without a folder of its own, as older libraries leave it
        listed.append(("Normalize", f"{len(listed)}_Normalize"))
    types = MODULE_TYPES[spelling]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": types[kind]}
        for i, (kind, path) in enumerate(listed)
    ]
    write_json(root / "modules.json", entries)


def _pooling_config(spec: TinyBert) -> dict[str, Any]:
    said: dict[str, Any]
    if spec.pooling_spelling == "new":
        mode = spec.pooling[0] if len(spec.pooling) == 1 else list(spec.pooling)
        said = {"embedding_dimension": spec.hidden, "pooling_mode": mode}
    else:
        said = {"word_embedding_dimension": spec.hidden}
        said |= {key: mode in spec.pooling for mode, key in OLD_POOLING_KEYS.items()}
    if spec.include_prompt is not None:
        said["include_prompt"] = spec.include_prompt
    return said


def _rows(
    tensors: Mapping[str, np.ndarray], stored: Stored
) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Rows for `write_safetensors`, the wider dtype first, as the library orders them."""
    rows = []
    for name in sorted(tensors):
        norm = "LayerNorm" in name
        dtype = ("F32" if norm else "BF16") if stored == "mixed" else stored
        rows.append((name, dtype, tensors[name].shape, encode_tensor(tensors[name], dtype)))
    return sorted(rows, key=lambda row: row[1] != "F32")


# ---- tensors


def _linear_shapes(name: str, rows: int, cols: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, cols), f"{name}.bias": (rows,)}


def _norm_shapes(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.LayerNorm.weight": (size,), f"{name}.LayerNorm.bias": (size,)}


def _draw(spec: TinyBert, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform values of mean 0 and the standard deviation that suits the tensor's part."""
    random = np.random.RandomState([spec.seed, zlib.crc32(name.encode())])
    unit = (random.random_sample(shape) * 2 - 1) * 3**0.5
    if name.endswith("LayerNorm.weight"):
        values = 1 + 0.2 * unit
    elif name.endswith("bias"):
        values = 0.2 * unit
    elif "embeddings." in name:
        values = 0.6 * unit
    else:
        values = spec.std * unit
    return values.astype(np.float32)
