"""Table look-ups on the CUDA device: a batch's tables and their norm are one launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drivers import dtypes, shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array, Device
from drivers.cuda.id_ranges import IdRanges
from drivers.cuda.launches import lookups as launches
from drivers.cuda.storage import storage_of, wide_bits
from drivers.errors import ShapeError
from drivers.forward_ops import require_norm
from drivers.types import BatchInputs, EmbeddingTable, NormWeights

Lookup = tuple[Array, Array]  # ids (n,) int32, table (rows, E)


class CudaLookups(CudaOps):
    """`drivers.primitives.memory.Lookups` and `embed`.

    Each tensor is of the storage type or float32, whatever the others are.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._id_ranges = IdRanges()

    def _remember_ids(self, array: Array, host_ids: NDArray[np.int32]) -> None:
        """These ids are what `array` holds on the device; look-ups by it need no check there."""
        self._id_ranges.remember(array, host_ids)

    def embedding_lookup(self, ids: Array, table: Array, *, out: Array | None = None) -> Array:
        op = "embedding_lookup"
        shape = _looked_up(op, (ids, table))
        storage_of(op, table)
        out = self._out(op, out, shape, table.dtype)
        return self._launch_embed(op, out, None, [(ids, table)], None)

    def add_embeddings(
        self, hidden: Array, table: Array, ids: Array, *, out: Array | None = None
    ) -> Array:
        op = "add_embeddings"
        shapes.require(op, "hidden", hidden.shape, _looked_up(op, (ids, table)))
        storage_of(op, hidden, table)
        out = self._out(op, out, hidden.shape, hidden.dtype)
        return self._launch_embed(op, out, hidden, [(ids, table)], None)

    def embed(
        self,
        batch: BatchInputs[Array],
        tables: Sequence[EmbeddingTable[Array]],
        norm: NormWeights[Array] | None = None,
    ) -> Array:
        op = "embed"
        if len(tables) > launches.TABLES:
            return super().embed(batch, tables, norm)
        if not tables:
            raise ShapeError(f"{op}: no tables")
        lookups = [(getattr(batch, entry.ids), entry.table) for entry in tables]
        first, *rest = [_looked_up(op, lookup) for lookup in lookups]
        for shape in rest:
            shapes.require(op, "hidden", first, shape)
        if norm is not None:
            require_norm(op, norm)
            shapes.require(op, "weight", norm.weight.shape, first[1:])
            if norm.bias is not None:
                shapes.require(op, "bias", norm.bias.shape, first[1:])
        storage_of(op, *(table for _, table in lookups), *_weights(norm))
        out = self._empty(first, lookups[0][1].dtype)
        return self._launch_embed(op, out, None, lookups, norm)

    def _launch_embed(
        self,
        op: str,
        out: Array,
        addend: Array | None,
        lookups: list[Lookup],
        norm: NormWeights[Array] | None,
    ) -> Array:
        """out = norm(addend + the looked up rows), (n, E), after a check of the ids."""
        rows, cols = out.shape
        tables = [table for _, table in lookups]
        weight, bias = _weights(norm)
        storage = storage_of(op, out, addend, *tables, weight, bias)
        for ids, table in lookups:
            self._check_ids(op, ids, table, storage)
        if not rows * cols:
            return out
        wide = wide_bits(
            storage,
            launches.WIDE,
            OUT=out,
            ADDEND=addend,
            WEIGHT=weight,
            BIAS=weight if bias is None else bias,
            **dict(zip(launches.TABLE_BITS, tables)),
        )
        flat: list[Array | np.int32 | None] = []
        for ids, table in lookups:
            flat += [ids, table, np.int32(table.shape[0])]
        flat += [None, None, np.int32(0)] * (launches.TABLES - len(lookups))
        self._launch(
            "lookups",
            storage,
            launches.embed(op, rows=rows, cols=cols, storage=storage, wide=int(wide)),
            out,
            addend,
            *flat,
            weight,
            bias,
            wide,
            np.int64(rows),
            np.int32(cols),
            np.float32(0 if norm is None else norm.eps),
            np.int32(norm is not None and norm.kind == "layer"),
        )
        return out

    def _check_ids(self, op: str, ids: Array, table: Array, storage: np.dtype[np.generic]) -> None:
        """Refuse ids that are not rows of the table, on the device where the host cannot tell."""
        size = table.shape[0]
        if not ids.size or self._id_ranges.within(ids, size):
            return
        found = self._empty((2,), np.dtype(np.int64))
        self._launch(
            "lookups",
            storage,
            launches.first_outside(),
            found,
            ids,
            np.int64(ids.size),
            np.int32(size),
        )
        place, bad = self.device.download(found)
        if place >= 0:
            raise ShapeError(
                f"{op}: id {bad} at position {place} is outside a table of {size} rows"
            )


def _looked_up(op: str, lookup: Lookup) -> tuple[int, int]:
    """Shape (n, E) of the rows; refuses ids that are not (n,) int32, and a table not (rows, E)."""
    ids, table = lookup
    shapes.require(op, "ids", ids.shape, (None,))
    shapes.require(op, "table", table.shape, (None, None))
    dtypes.require(op, "ids", ids, dtypes.INT32)
    return ids.shape[0], table.shape[1]


def _weights(norm: NormWeights[Array] | None) -> tuple[Array | None, Array | None]:
    """The weight and the bias, None where there is none."""
    return (None, None) if norm is None else (norm.weight, norm.bias)
