"""What every family shares: a batch in, pooled vectors out, and the reading of packed weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from arch.checkpoint import Checkpoint
from arch.errors import CheckpointError
from arch.pooling import Head
from arch.weights import WeightReader, WeightSpec
from drivers import shapes
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.protocol import Driver
from drivers.types import BatchInputs, Encoding, T


class ModelArch(Protocol):
    """A loaded model: its weights on one kind of device, its pooling and what follows it."""

    @property
    def checkpoint(self) -> Checkpoint:
        """What the model's folder says of itself, with the caller's overrides."""
        ...

    @property
    def dim(self) -> int:
        """D, the width of the vectors."""
        ...

    @property
    def max_tokens(self) -> int:
        """The longest sequence that the weights can serve, special tokens included."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the token table; ids lie below it."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The storage type of weights and activations."""
        ...

    def forward(self, driver: Driver[Any], encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """One batch: B encodings -> (B, D) float32, row i for encoding i.

        `driver` is the one that packed the weights or a clone of it. Raises ShapeError for an
        empty or over-long sequence.
        """
        ...


class EncoderModel(ABC, Generic[T]):
    """Base of the families: pools what `encode` gives, then applies the head.

    fits: the storage types whose range and precision the family's activations fit in; what
    `dtype: auto` picks from.
    """

    fits: ClassVar[tuple[np.dtype[Any], ...]] = (FLOAT32, FLOAT16, BFLOAT16)

    def __init__(
        self,
        checkpoint: Checkpoint,
        head: Head,
        dtype: np.dtype[Any],
        *,
        max_tokens: int,
        vocab_size: int,
    ) -> None:
        self.checkpoint = checkpoint
        self.head = head
        self.dtype = dtype
        self.max_tokens = max_tokens
        self.vocab_size = vocab_size

    @property
    def dim(self) -> int:
        return self.head.dim or self.head.width

    @abstractmethod
    def encode(self, driver: Driver[T], batch: BatchInputs[T]) -> T:
        """The last hidden states of an unpadded batch: (T, E)."""

    def forward(self, driver: Driver[T], encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        shapes.encodings("forward", encodings, self.max_tokens)
        batch = driver.prepare_batch_unpadded(encodings)
        x = self.encode(driver, batch)  # (T, E)
        return self.head(driver.pool(x, batch, self.checkpoint.pool_modes))  # (B, D)


def packer(
    reader: WeightReader,
    driver: Driver[T],
    dtype: DTypeLike,
    sizes: Mapping[str, int],
    checkpoint: Checkpoint,
) -> Callable[..., dict[str, T]]:
    """A function (specs, layer=None) -> packed weights by field.

    Linear weights come from the checkpoint's packed file where an earlier load wrote them, and go
    to it where not. Raises CheckpointError where float16 storage is asked for and a weight is
    beyond its range.
    """
    # A driver rounds to bfloat16 itself: what it keeps in float32 (tables, norms) it gets whole.
    host_dtype = np.float32 if np.dtype(dtype) == BFLOAT16 else dtype
    kept = None if driver.packed_layout(dtype) is None else checkpoint.packed

    def read(specs: Sequence[WeightSpec], layer: int | None = None) -> dict[str, T]:
        return {spec.field: read_one(spec, layer) for spec in specs}

    def read_one(spec: WeightSpec, layer: int | None) -> T:
        if kept is None or spec.role not in ("linear", "gated"):
            return pack_one(spec, layer)
        name = f"{layer}.{spec.field}.{spec.role}"
        shape = reader.shape(spec, sizes, layer)
        values = kept.get(name)
        if values is None:
            values = kept.add(name, driver.packed_values(pack_one(spec, layer)))
        return driver.from_packed(values, shape, spec.role, dtype)

    def pack_one(spec: WeightSpec, layer: int | None) -> T:
        host = reader.read([spec], sizes, host_dtype, layer)[spec.field]
        return driver.pack(host, spec.role, dtype)

    return read


def require_config(checkpoint: Checkpoint, only: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a config.json that sets a key to what the family does not do.

    only: the values each key may have; an absent or null key is fine.
    """
    for key, allowed in only.items():
        value = checkpoint.config.data.get(key)
        if value is not None and value not in allowed:
            raise checkpoint.config.error(key, "one of " + ", ".join(map(repr, allowed)))


def require_heads(
    checkpoint: Checkpoint, hidden_size: int, num_heads: int, key: str = "num_attention_heads"
) -> None:
    """Refuse heads that do not divide the hidden size. key: what the config calls their number."""
    if hidden_size % num_heads:
        raise CheckpointError(
            checkpoint.config.path,
            f"'{key}' is {num_heads}, which does not divide the hidden size {hidden_size}",
        )
