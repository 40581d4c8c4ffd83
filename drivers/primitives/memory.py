"""Primitives of memory, batches and table look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Self

from drivers.types import BatchInputs, Encoding, T


class Memory(Protocol[T]):
    """Memory, copies to and from the host, and a batch's life."""

    def alloc_zeros(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> T:
        """A new tensor of zeros."""
        ...

    def clone_tensor(self, x: T) -> T:
        """An independent copy of `x`."""
        ...

    def cast(self, x: T, dtype: DTypeLike, *, out: T | None = None) -> T:
        """`x` in float32 or float16, rounded to nearest; beyond float16's range infinite."""
        ...

    def from_host(self, array: NDArray[Any]) -> T:
        """The array on the device, in its own dtype; the driver may keep a reference to it."""
        ...

    def to_host(self, x: T) -> NDArray[Any]:
        """The tensor as a host array, in its own dtype; it may share the tensor's memory."""
        ...

    def new_for_clone(self) -> Self:
        """Another driver on the same device for another thread or actor, sharing no state.

        Weights packed by one CPU driver may be read by its clones.
        """
        ...

    def begin_batch(self) -> None:
        """Open a batch: what follows, up to `end_batch`, may be recorded as one dispatch."""
        ...

    def end_batch(self) -> None:
        """Close the batch that `begin_batch` opened and wait for its results.

        Open pool cursors are forgotten and the memory kept for reuse is given back. Raises
        DriverError where no batch is open.
        """
        ...

    def flush_batch(self) -> None:
        """Send what the open batch recorded so far and go on recording; the pool is kept.

        Nothing happens where nothing is recorded.
        """
        ...

    def segment_encoder(self) -> None:
        """Cut the recording in two without sending it; nothing happens where none is kept."""
        ...

    def save_pool_cursor(self) -> int:
        """Open a scope of the memory pool, before a layer's work; the cursor to restore.

        While a scope is open, results are allocated from the pool. Scopes nest.
        """
        ...

    def restore_pool_cursor(self, saved: int) -> None:
        """Close the last scope: recycle what was allocated in it and is not held any more.

        A tensor that is still held leaves the pool and lives as any other does, so no value ever
        changes under its holder. Raises DriverError for a cursor that is not the last saved one.
        """
        ...


class Batching(Protocol[T]):
    """Between host encodings, flat tokens (T, ·) and padded batches (B, S, ·)."""

    def prepare_batch(self, encodings: Sequence[Encoding], max_seq: int) -> BatchInputs[T]:
        """Upload a batch padded to `max_seq`. An empty or longer sequence raises ShapeError."""
        ...

    def prepare_batch_unpadded(self, encodings: Sequence[Encoding]) -> BatchInputs[T]:
        """Upload a batch as flat tokens with `cu_seqlens`; nothing is padded."""
        ...

    def pad_to_batch(
        self, flat: T, *, seq_lengths: Sequence[int], max_seq: int, out: T | None = None
    ) -> T:
        """Scatter (T, dim) to (B, max_seq, dim); padded positions are zero."""
        ...

    def unpad_from_batch(self, padded: T, *, seq_lengths: Sequence[int], out: T | None = None) -> T:
        """Gather (B, S, dim) to (T, dim), leaving the padding behind."""
        ...


class Lookups(Protocol[T]):
    """Rows of tables by id. An id outside the table raises ShapeError with the id and the size."""

    def embedding_lookup(self, ids: T, table: T, *, out: T | None = None) -> T:
        """table[ids]: ids (n,) int32, table (rows, E) -> (n, E) in the table's dtype."""
        ...

    def add_embeddings(self, hidden: T, table: T, ids: T, *, out: T | None = None) -> T:
        """hidden + table[ids]: (n, E). `out` may be `hidden`."""
        ...
