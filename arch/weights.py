"""Weights from safetensors: mapped, never unpickled, and strict both ways.

A family lists its weights as a table of `WeightSpec`. `WeightReader` finds the prefix under which
the tensors were saved, checks every shape, and refuses a tensor that is neither listed nor ignored.
Format: https://huggingface.co/docs/safetensors (8-byte little-endian header size, JSON, data).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

from arch.errors import CheckpointError
from arch.json_file import JsonFile
from arch.stored import StoredTensor, copy_to, to_host
from drivers.types import WeightRole

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class WeightSpec:
    """One field of a family's weights.

    names: checkpoint names, without prefix; several are stacked along the first axis (a fused
    projection). shape: letters whose sizes the family gives, of each stored tensor, or one such
    shape for each name.
    """

    field: str
    names: tuple[str, ...]
    shape: str | tuple[str, ...]
    role: WeightRole

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """(name, shape) of each stored tensor."""
        shapes = (self.shape,) * len(self.names) if isinstance(self.shape, str) else self.shape
        return tuple(zip(self.names, shapes))


def linear_specs(
    field: str,
    names: tuple[str, ...],
    shape: str | tuple[str, ...],
    *,
    bias: bool,
    role: WeightRole = "linear",
) -> tuple[WeightSpec, ...]:
    """A linear layer's `field` and, with a bias, `field`_bias; names end before `.weight`."""
    rows = shape[0] if isinstance(shape, str) else tuple(part[0] for part in shape)
    weight = WeightSpec(field, tuple(f"{name}.weight" for name in names), shape, role)
    bias_names = tuple(f"{name}.bias" for name in names)
    return (weight, WeightSpec(f"{field}_bias", bias_names, rows, "vector"))[: 1 + bias]


def norm_specs(field: str, name: str, shape: str = "E", *, bias: bool) -> tuple[WeightSpec, ...]:
    """A norm's `field` and, with a bias, `field`_bias; the name ends before `.weight`."""
    weight = WeightSpec(field, (f"{name}.weight",), shape, "vector")
    return (weight, WeightSpec(f"{field}_bias", (f"{name}.bias",), shape, "vector"))[: 1 + bias]


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, mapped. Raises CheckpointError where it is damaged."""
    try:
        with safe_open(path, framework="numpy") as checked:  # the library checks the header
            names = list(checked.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path, f"is not a readable safetensors file: {error}") from error
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    header_bytes = int(mapped[:8].view("<u8")[0])
    header = json.loads(mapped[8 : 8 + header_bytes].tobytes())
    data = mapped[8 + header_bytes :]
    tensors = {}
    for name in names:
        begin, end = header[name]["data_offsets"]
        tensors[name] = StoredTensor(
            path, header[name]["dtype"], tuple(header[name]["shape"]), data[begin:end]
        )
    return tensors


def open_weights(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder: model.safetensors, or the shards of its index.

    Raises CheckpointError for a damaged or missing file, a tensor that the index and its shard do
    not agree on, and a folder that holds only pickles.
    """
    single = folder / "model.safetensors"
    if single.exists():
        return open_safetensors(single)
    index_path = folder / "model.safetensors.index.json"
    if index_path.exists():
        return _open_shards(index_path)
    pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            folder,
            f"holds only pickled weights ({', '.join(pickles)}), which are never opened; "
            "wanted model.safetensors",
        )
    raise CheckpointError(folder, "has no model.safetensors and no model.safetensors.index.json")


def _open_shards(index_path: Path) -> dict[str, StoredTensor]:
    weight_map = JsonFile.read(index_path).data.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(index_path, "has no 'weight_map' of tensor names to files")
    tensors: dict[str, StoredTensor] = {}
    for file_name in sorted(set(map(str, weight_map.values()))):
        path = index_path.parent / file_name
        if path.parent != index_path.parent:
            raise CheckpointError(index_path, f"names the shard '{file_name}' outside its folder")
        if not path.exists():
            raise CheckpointError(path, f"is missing; {index_path.name} names it")
        for name, tensor in open_safetensors(path).items():
            if weight_map.get(name) != file_name:
                raise CheckpointError(
                    path, f"holds '{name}', which {index_path.name} does not place there"
                )
            tensors[name] = tensor
    for name, file_name in weight_map.items():
        if name not in tensors:
            raise CheckpointError(
                index_path.parent / file_name,
                f"lacks '{name}', which {index_path.name} places there",
            )
    return tensors


class WeightReader:
    """Reads a family's fields from the tensors of a folder and keeps count of what was used."""

    def __init__(
        self,
        folder: Path,
        tensors: Mapping[str, StoredTensor],
        *,
        anchor: str,
        renames: Mapping[str, str] | None = None,
    ) -> None:
        """anchor: a name that every checkpoint of the family has; what stands before it is the
        prefix of all (none, `bert.`, `model.`, `0.auto_model.`, …). renames: old endings of names
        to new ones.
        """
        self._folder = folder
        stored_as: dict[str, str] = {}
        for stored, tensor in tensors.items():
            name = _renamed(stored, renames or {})
            if name in stored_as:
                raise CheckpointError(
                    tensor.path,
                    f"holds one tensor twice, as '{stored_as[name]}' and as '{stored}'",
                )
            stored_as[name] = stored
        self._tensors = {name: tensors[stored] for name, stored in stored_as.items()}
        self._anchor = anchor
        self._used: set[str] = set()
        self._prefix = self._find_prefix()

    def read(
        self,
        specs: Iterable[WeightSpec],
        sizes: Mapping[str, int],
        dtype: DTypeLike,
        layer: int | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Host arrays of `dtype` by field: mapped views where a field is one tensor stored so.

        `{layer}` in a name stands for the layer's number. Raises CheckpointError for a missing
        tensor, a wrong shape, a stored dtype not known, and values that `dtype` cannot hold.
        """
        fields = {}
        for spec in specs:
            parts = [
                self._find(name.format(layer=layer), tuple(sizes[letter] for letter in shape))
                for name, shape in spec.parts
            ]
            parts = [(f"'{name}' of '{spec.field}'", tensor) for name, tensor in parts]
            fields[spec.field] = _stacked(parts, np.dtype(dtype))
        return fields

    def shape(
        self, spec: WeightSpec, sizes: Mapping[str, int], layer: int | None = None
    ) -> tuple[int, ...]:
        """The shape of a field, whose tensors count as used. Raises CheckpointError as `read`."""
        found = [
            self._find(name.format(layer=layer), tuple(sizes[letter] for letter in shape))[1].shape
            for name, shape in spec.parts
        ]
        return (sum(shape[0] for shape in found), *found[0][1:])

    def rows(self, name: str) -> int | None:
        """The first size of a stored tensor; None where there is none of that name."""
        tensor = self._tensors.get(self._prefix + name)
        return None if tensor is None else tensor.shape[0]

    def finish(self, ignored: Sequence[str]) -> None:
        """Refuse what is left over. ignored: name patterns, with or without the prefix."""
        for name, tensor in self._tensors.items():
            bare = name.removeprefix(self._prefix)
            if name in self._used or any(
                fnmatchcase(name, pattern) or fnmatchcase(bare, pattern) for pattern in ignored
            ):
                continue
            raise CheckpointError(
                tensor.path,
                f"holds '{name}' {tensor.shape}, which this family has no place for",
            )

    def _find_prefix(self) -> str:
        prefixes = sorted(
            name.removesuffix(self._anchor)
            for name in self._tensors
            if name == self._anchor or name.endswith("." + self._anchor)
        )
        if len(prefixes) == 1:
            return prefixes[0]
        if prefixes:
            raise CheckpointError(
                self._folder, f"holds '{self._anchor}' under several prefixes: {prefixes}"
            )
        some = ", ".join(sorted(self._tensors)[:3]) or "none at all"
        raise CheckpointError(
            self._folder,
            f"has no tensor '{self._anchor}', with any prefix; it has {some}",
        )

    def _find(self, bare: str, want: tuple[int, ...]) -> tuple[str, StoredTensor]:
        """The tensor's full name and place, checked against the shape that the config wants."""
        name = self._prefix + bare
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(
                self._folder, f"has no tensor '{name}', wanted one of shape {want}"
            )
        if tensor.shape != want:
            raise CheckpointError(
                tensor.path, f"'{name}' has shape {tensor.shape}, the config wants {want}"
            )
        self._used.add(name)
        return name, tensor


def _stacked(parts: Sequence[tuple[str, StoredTensor]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values of a labelled tensor, or of several stacked, each copied straight to its place."""
    if len(parts) == 1:
        return to_host(*parts[0], dtype)
    rows = np.cumsum([0, *(tensor.shape[0] for _, tensor in parts)])
    out = np.empty((rows[-1], *parts[0][1].shape[1:]), dtype)
    for (label, tensor), start, stop in zip(parts, rows, rows[1:]):
        copy_to(label, tensor, out[start:stop])
    return out


def _renamed(name: str, renames: Mapping[str, str]) -> str:
    for old, new in renames.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
