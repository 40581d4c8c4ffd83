"""NullDriver: runs a model on shapes alone and counts calls, floating point operations and bytes.

It checks every shape as the other drivers do and holds no values; what it copies to the host is
zeros. Matrix products count 2 m n k operations, banded ones 2 W D a query; element-wise work is not
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from drivers import shapes
from drivers.batches import batch_inputs
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32, storage
from drivers.errors import DriverError
from drivers.null.arithmetic import NullArithmetic
from drivers.null.attention import NullAttention
from drivers.null.tensor import NullTensor
from drivers.types import BatchInputs, Encoding, lengths_of


class NullDriver(NullArithmetic, NullAttention):
    """Shapes only. `tally` holds calls by primitive, FLOPs, and live and peak bytes."""

    name = "null"
    preferred_tokens = 16384
    dtypes = (FLOAT32, FLOAT16, BFLOAT16)

    def __init__(self) -> None:
        super().__init__()
        self._cursors: list[int] = []

    # ---- memory

    def alloc_zeros(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NullTensor:
        return self._new("alloc_zeros", None, shape, np.dtype(dtype))

    def clone_tensor(self, x: NullTensor) -> NullTensor:
        return self._new("clone_tensor", None, x.shape, x.dtype)

    def cast(self, x: NullTensor, dtype: DTypeLike, *, out: NullTensor | None = None) -> NullTensor:
        return self._new("cast", out, x.shape, storage("cast", dtype))

    def from_host(self, array: NDArray[Any]) -> NullTensor:
        return self._new("from_host", None, array.shape, array.dtype)

    def to_host(self, x: NullTensor) -> NDArray[Any]:
        self.tally.calls_total["to_host"] += 1
        return np.zeros(x.shape, x.dtype)

    def new_for_clone(self) -> NullDriver:
        return NullDriver()

    def begin_batch(self) -> None:
        self.tally.calls_total["begin_batch"] += 1

    def end_batch(self) -> None:
        self.tally.calls_total["end_batch"] += 1
        self._cursors.clear()

    def flush_batch(self) -> None:
        self.tally.calls_total["flush_batch"] += 1

    def segment_encoder(self) -> None:
        self.tally.calls_total["segment_encoder"] += 1

    def save_pool_cursor(self) -> int:
        self.tally.calls_total["save_pool_cursor"] += 1
        self._cursors.append(len(self._cursors))
        return self._cursors[-1]

    def restore_pool_cursor(self, saved: int) -> None:
        self.tally.calls_total["restore_pool_cursor"] += 1
        if not self._cursors or self._cursors[-1] != saved:
            have = f"the last saved is {self._cursors[-1]}" if self._cursors else "none is saved"
            raise DriverError(f"restore_pool_cursor: cursor {saved}, but {have}")
        self._cursors.pop()

    # ---- batching

    def prepare_batch(self, encodings: Sequence[Encoding], max_seq: int) -> BatchInputs[NullTensor]:
        return batch_inputs("prepare_batch", encodings, max_seq, padded=True, upload=self.from_host)

    def prepare_batch_unpadded(self, encodings: Sequence[Encoding]) -> BatchInputs[NullTensor]:
        longest = max(lengths_of(encodings), default=0)
        return batch_inputs(
            "prepare_batch_unpadded", encodings, longest, padded=False, upload=self.from_host
        )

    # ---- lookups

    def embedding_lookup(
        self, ids: NullTensor, table: NullTensor, *, out: NullTensor | None = None
    ) -> NullTensor:
        shapes.require("embedding_lookup", "ids", ids.shape, (None,))
        shapes.require("embedding_lookup", "table", table.shape, (None, None))
        return self._new("embedding_lookup", out, (ids.shape[0], table.shape[1]), table.dtype)

    def add_embeddings(
        self,
        hidden: NullTensor,
        table: NullTensor,
        ids: NullTensor,
        *,
        out: NullTensor | None = None,
    ) -> NullTensor:
        shapes.require("add_embeddings", "ids", ids.shape, (None,))
        shapes.require("add_embeddings", "table", table.shape, (None, None))
        shape = (ids.shape[0], table.shape[1])
        shapes.require("add_embeddings", "hidden", hidden.shape, shape)
        return self._new("add_embeddings", out, shape, hidden.dtype)
