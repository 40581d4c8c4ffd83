"""NumpyDriver: the portable driver. Tensors are NumPy arrays; BLAS does the products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from drivers import shapes
from drivers.batches import batch_inputs
from drivers.dtypes import FLOAT16, FLOAT32, INT32, require, require_float, storage
from drivers.errors import ShapeError
from drivers.numpy.arithmetic import NumpyArithmetic
from drivers.numpy.attention import NumpyAttention
from drivers.numpy.banded import NumpyBanded
from drivers.numpy.base import Array, float32
from drivers.numpy.blas import BLAS_THREADS
from drivers.numpy.long_attention import NumpyLongAttention
from drivers.numpy.pooling import NumpyPooling
from drivers.types import BatchInputs, Encoding, lengths_of


class NumpyDriver(NumpyArithmetic, NumpyAttention, NumpyLongAttention, NumpyBanded, NumpyPooling):
    """Every primitive in NumPy: float32 or float16 storage, float32 arithmetic.

    A single-threaded driver: while a batch is open (`begin_batch`), BLAS runs on one thread, and
    several clones in several threads use several cores.
    """

    name = "numpy"
    preferred_tokens = 1024
    dtypes: tuple[np.dtype[Any], ...] = (FLOAT32, FLOAT16)

    # ---- memory

    def alloc_zeros(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        return self.pool_memory.zeros(shape, np.dtype(dtype))

    def clone_tensor(self, x: Array) -> Array:
        out = self.pool_memory.new(x.shape, x.dtype)
        out[...] = x
        return out

    def cast(self, x: Array, dtype: DTypeLike, *, out: Array | None = None) -> Array:
        require_float("cast", x)
        want = storage("cast", dtype)
        out = self._out("cast", out, x.shape, want, only=want)
        with np.errstate(over="ignore"):
            out[...] = x
        return out

    def from_host(self, array: Array) -> Array:
        return array

    def to_host(self, x: Array) -> Array:
        return x

    def new_for_clone(self) -> NumpyDriver:
        return NumpyDriver()

    # ---- a batch's life

    def begin_batch(self) -> None:
        BLAS_THREADS.acquire()

    def end_batch(self) -> None:
        BLAS_THREADS.release()
        self.pool_memory.clear()

    def flush_batch(self) -> None:
        return  # nothing is recorded: every operation is done when it returns

    def segment_encoder(self) -> None:
        return  # nothing is recorded

    def save_pool_cursor(self) -> int:
        return self.pool_memory.save()

    def restore_pool_cursor(self, saved: int) -> None:
        self.pool_memory.restore(saved)

    # ---- batching

    def prepare_batch(self, encodings: Sequence[Encoding], max_seq: int) -> BatchInputs[Array]:
        return batch_inputs("prepare_batch", encodings, max_seq, padded=True, upload=self.from_host)

    def prepare_batch_unpadded(self, encodings: Sequence[Encoding]) -> BatchInputs[Array]:
        longest = max(lengths_of(encodings), default=0)
        return batch_inputs(
            "prepare_batch_unpadded", encodings, longest, padded=False, upload=self.from_host
        )

    # ---- lookups

    def embedding_lookup(self, ids: Array, table: Array, *, out: Array | None = None) -> Array:
        check_ids("embedding_lookup", ids, table)
        out = self._out("embedding_lookup", out, (len(ids), table.shape[1]), table.dtype)
        if out.dtype == table.dtype:
            np.take(table, ids, axis=0, out=out, mode="clip")  # ids are in range: no copy
        else:
            out[...] = table[ids]
        return out

    def add_embeddings(
        self, hidden: Array, table: Array, ids: Array, *, out: Array | None = None
    ) -> Array:
        check_ids("add_embeddings", ids, table)
        shapes.require("add_embeddings", "hidden", hidden.shape, (len(ids), table.shape[1]))
        require_float("add_embeddings", hidden)
        out = self._out("add_embeddings", out, hidden.shape, hidden.dtype)
        out[...] = float32(hidden) + float32(table[ids])
        return out


def check_ids(op: str, ids: Array, table: Array) -> None:
    """Refuse ids that are not int32, or not rows of the table."""
    shapes.require(op, "ids", ids.shape, (None,))
    shapes.require(op, "table", table.shape, (None, None))
    require(op, "ids", ids, INT32)
    require_float(op, table)
    outside = (ids < 0) | (ids >= len(table))
    if outside.any():
        position = int(outside.argmax())
        raise ShapeError(
            f"{op}: id {ids[position]} at position {position} is outside a table of "
            f"{len(table)} rows"
        )
