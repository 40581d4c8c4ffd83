"""Ways to damage a good model folder; each gives a function of the folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from catalogue import BASE
from folders import (
    VOCAB,
    TinyBert,
    drop_json_keys,
    edit_json,
    encode_tensor,
    stored_tensors,
    write_json,
    write_safetensors,
    write_tensors,
)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"
WORDS = "embeddings.word_embeddings.weight"
QUERY = "encoder.layer.0.attention.self.query.weight"


@dataclass(frozen=True)
class Bad:
    """damage: what is done to the good folder of `spec`; says: parts that the message must have."""

    damage: Callable[[Path], object]
    says: tuple[str, ...]
    spec: TinyBert = BASE
    options: Mapping[str, Any] = field(default_factory=dict)


def json_set(name: str, **changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit_json(folder / name, **changes)


def json_dropped(name: str, *keys: str) -> Callable[[Path], object]:
    return lambda folder: drop_json_keys(folder / name, *keys)


def text(name: str, text: str | bytes) -> Callable[[Path], object]:
    data = text if isinstance(text, bytes) else text.encode()
    return lambda folder: (folder / name).write_bytes(data)


def removed(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def made_a_folder(name: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def changed_bytes(
    change: Callable[[bytes], bytes], name: str = WEIGHTS
) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def changed_header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Rewrite the safetensors header and leave the data as it is."""

    def rewrite(raw: bytes) -> bytes:
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + size :]

    return changed_bytes(rewrite)


def changed_tensors(
    change: Callable[[dict[str, np.ndarray]], object], spec: TinyBert = BASE
) -> Callable[[Path], object]:
    """Write the weights of a spec again, changed."""

    def damage(folder: Path) -> None:
        tensors = stored_tensors(spec)
        change(tensors)
        write_tensors(folder / WEIGHTS, tensors, spec.stored)

    return damage


def one_value(name: str, value: float) -> Callable[[Path], object]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name].flat[5] = value

    return changed_tensors(change)


def stored_as(name: str, dtype: str, width: int) -> Callable[[Path], object]:
    """One tensor in a stored dtype that no model of this family has."""

    def damage(folder: Path) -> None:
        tensors = stored_tensors(BASE)
        rows = [(k, "F32", v.shape, encode_tensor(v, "F32")) for k, v in tensors.items()]
        shape = tensors[name].shape
        odd = (name, dtype, shape, bytes(width * tensors[name].size))
        write_safetensors(folder / WEIGHTS, [odd, *(row for row in rows if row[0] != name)])

    return damage


def listed_modules(
    *names: str, family: str = "sentence_transformers.models"
) -> Callable[[Path], object]:
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    entries = [
        {
            "idx": i,
            "name": str(i),
            "path": paths.get(name, f"{i}_{name}"),
            "type": f"{family}.{name}",
        }
        for i, name in enumerate(names)
    ]
    return lambda folder: write_json(folder / "modules.json", entries)


def changed_weight_map(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        change(index["weight_map"])
        write_json(folder / INDEX, index)

    return damage


def token_beyond_the_table(folder: Path) -> None:
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    said["model"]["vocab"]["zebra"] = len(VOCAB) + 3
    write_json(path, said)


def only_pickles(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not opened")


def dense_as_pickle(folder: Path) -> None:
    (folder / "2_Dense" / WEIGHTS).unlink()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"not opened")


def dense_tensors(**tensors: np.ndarray) -> Callable[[Path], object]:
    named = {name.replace("_", "."): values for name, values in tensors.items()}
    return lambda folder: write_tensors(folder / "2_Dense" / WEIGHTS, named)


def nothing(folder: Path) -> None:
    """The spec or the options are what is wrong."""


def other_shard(shard: str) -> str:
    return shard.replace("00001-of", "X").replace("00002-of", "00001-of").replace("X", "00002-of")
