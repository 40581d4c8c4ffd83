"""What the tiny models of all families share: tensors by name, token rows, and the folder.

A family is a frozen dataclass over `TinyModel`. Its tensors are drawn under the names of the
`transformers` class, each from a frozen random stream of its own (as in `folders`), and a layout
only renames and joins them: every layout of a model stands for the same numbers.
"""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from folders import MODULE_TYPES, encode_tensor, write_json, write_safetensors
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

Part = Literal["matrix", "table", "norm", "bias"]
Shapes = dict[str, tuple[Part, tuple[int, ...]]]
Tensors = dict[str, np.ndarray]

SPECIALS = ("<0>", "<1>", "<2>", "<3>", "<4>", "<end>")
FIRST_WORD = len(SPECIALS)
END = SPECIALS[-1]
END_ID = SPECIALS.index(END)

SHORT = (1, 2, 7, 63, 64, 65, 66, 127, 128, 129, 130)
LONG = (*SHORT, 515, 2048)
WRONG_LENGTHS = (7, 66, 130, 515)
"""Rows that wrong variants are computed for, where a case has them."""


@dataclass(frozen=True)
class TinyModel(ABC):
    """A model as values. What a family adds beside sizes may also serve to make wrong variants.

    std: of the matrices, 0.15 to 0.2, so that slips are large; 0.12 where the model is 256 wide,
    since scores so peaked let the reference's own float32 noise pass the bound.
    """

    seed: int = 21
    vocab: int = 120
    hidden: int = 64
    heads: int = 2
    layers: int = 3
    intermediate: int = 88
    eps: float = 1e-5
    std: float = 0.17

    modes: ClassVar[tuple[str, ...]] = ("cls", "mean", "lasttoken")
    layouts: ClassVar[tuple[str, ...]]
    """Ways to spell config.json and tensor names; the first is what `transformers` 5 writes."""

    @abstractmethod
    def config(self, layout: str) -> dict[str, Any]:
        """config.json in a layout's spelling."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """Every tensor by the name of the `transformers` class."""

    @abstractmethod
    def stored(self, layout: str) -> Tensors:
        """Float32 tensors under the names of a layout's file."""

    def weights(self) -> Tensors:
        """Float32 tensors by the names of `shapes`."""
        return {name: self.draw(name, *entry) for name, entry in self.shapes().items()}

    def draw(self, name: str, part: Part, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform values of mean 0 (norms: 1) and the standard deviation that suits the part."""
        random = np.random.RandomState([self.seed, zlib.crc32(name.encode())])
        unit = (random.random_sample(shape) * 2 - 1) * 3**0.5
        scale = {"matrix": self.std, "table": 0.6, "norm": 0.2, "bias": 0.2}[part]
        return ((1.0 if part == "norm" else 0.0) + scale * unit).astype(np.float32)

    def row(self, length: int) -> np.ndarray:
        """Token ids of a text of a length, special tokens left out: (S,) int32."""
        random = np.random.RandomState([self.seed, length])
        words = random.random_sample(length) * (self.vocab - FIRST_WORD)
        return (words.astype(np.int32) + FIRST_WORD).astype(np.int32)

    def rows(self, lengths: Sequence[int]) -> list[np.ndarray]:
        return [self.row(length) for length in lengths]


@dataclass(frozen=True)
class Case:
    """A model with a golden. wrong: specs it must not be taken for. slips: mistakes that the golden
    script makes in the reference itself, by name. layouts: those to test; None for all. extra_rows:
    token ids beside the rows of `lengths`.
    """

    spec: TinyModel
    wrong: Mapping[str, TinyModel] = field(default_factory=dict)
    slips: tuple[str, ...] = ()
    lengths: tuple[int, ...] = SHORT
    layouts: tuple[str, ...] | None = None
    extra_rows: tuple[tuple[int, ...], ...] = ()

    def rows(self) -> list[np.ndarray]:
        """The token ids of every row of the golden."""
        rows = self.spec.rows(self.lengths)
        return rows + [np.array(row, dtype=np.int32) for row in self.extra_rows]

    def wrong_rows(self) -> list[int]:
        """Which rows wrong variants are computed for."""
        picked = [i for i, length in enumerate(self.lengths) if length in WRONG_LENGTHS]
        count = len(self.lengths)
        return picked + list(range(count, count + len(self.extra_rows)))

    def spellings(self) -> tuple[str, ...]:
        return self.spec.layouts if self.layouts is None else self.layouts


def build_model(folder: Path, spec: TinyModel, layout: str | None = None) -> Path:
    """Write the folder in a layout, by default the first; returns it."""
    layout = layout or spec.layouts[0]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", spec.config(layout))
    write_tensors_and_ids(folder / "model.safetensors", spec.stored(layout))
    word_tokenizer(spec.vocab).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    pooling = {"embedding_dimension": spec.hidden, "pooling_mode": list(spec.modes)}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    listed = (("Transformer", ""), ("Pooling", "1_Pooling"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": MODULE_TYPES["new"][kind]}
        for i, (kind, path) in enumerate(listed)
    ]
    write_json(folder / "modules.json", modules)
    return folder


def write_tensors_and_ids(path: Path, tensors: Tensors) -> None:
    """Arrays as one safetensors file: int64 where they are, as old buffers of ids, else float32."""
    rows = []
    for name, values in sorted(tensors.items()):
        if values.dtype == np.int64:
            rows.append((name, "I64", values.shape, values.astype("<i8").tobytes()))
        else:
            rows.append((name, "F32", values.shape, encode_tensor(values, "F32")))
    write_safetensors(path, rows)


def weights_hash(spec: TinyModel) -> str:
    """sha256 over all tensors that a spec stands for."""
    digest = hashlib.sha256()
    for name, values in sorted(spec.weights().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(values, dtype="<f4").tobytes())
    return digest.hexdigest()


def rows_hash(case: Case) -> str:
    """sha256 over the token ids of a case."""
    digest = hashlib.sha256()
    for row in case.rows():
        digest.update(np.ascontiguousarray(row, dtype="<i4").tobytes() + b"|")
    return digest.hexdigest()


def word_tokenizer(vocab: int, *, adds_end: bool = True) -> Tokenizer:
    """One token a word ("w7" is id 7). adds_end: whether END closes every text."""
    ids = {token: i for i, token in enumerate(SPECIALS)}
    ids |= {f"w{i}": i for i in range(FIRST_WORD, vocab)}
    fast = Tokenizer(WordLevel(ids, unk_token=SPECIALS[0]))
    fast.pre_tokenizer = WhitespaceSplit()
    fast.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    if adds_end:
        special = [(END, END_ID)]
        fast.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=special)
    return fast


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: values for name, values in tensors.items()}


def position_ids(rows: int) -> np.ndarray:
    """The buffer that older libraries wrote out beside the weights."""
    return np.arange(rows, dtype=np.int64)[None]


def linear(name: str, rows: int, cols: int, *, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": ("matrix", (rows, cols))}
    return shapes | ({f"{name}.bias": ("bias", (rows,))} if bias else {})


def norm(name: str, size: int, *, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": ("norm", (size,))}
    return shapes | ({f"{name}.bias": ("bias", (size,))} if bias else {})
