"""Ids that are in the corpus twice, found with 8 bytes a row.

How a job calls it, by ``source.duplicates``:

- ``fail``: whoever reads a shard keeps ``hash_ids(rows.table["id"])`` (a NumPy array) beside it.
  Before the version is committed, `find_duplicates` gets those arrays in plan order, and a way to
  read a shard again; it reads only the shards where two hashes met. Anything found is
  raised as `duplicates_error`. To fail before anything is embedded, do it as a pass of its own.
- ``keep_first``, ``dead_letter``: the same pass comes before embedding, since parts are never
  changed. Its result, grouped by shard, goes with each shard to `apply_duplicates`, right after
  `read_shard`.

A part that is kept from an earlier version has its ids in the part: hash those, without a read of
the source. "First" is in plan order: the order of shards, and of rows within one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import Duplicates
from pipeline.errors import UsageError
from pipeline.source.types import Plan, RowReport, Shard, ShardRows

_PASS_ROWS = 1 << 24
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A row whose id an earlier row has; rows are numbered as in `source_row`."""

    id: str | int
    shard: str
    """Key of the shard that holds the later row."""
    row: int
    first_shard: str
    first_row: int


def hash_ids(ids: pa.ChunkedArray | pa.Array) -> NDArray[np.uint64]:
    """64-bit hash of each id (a column of strings or int64 without nulls), in order."""
    hashes = np.empty(len(ids), np.uint64)
    for place, id in enumerate(ids.to_pylist()):
        hashed = blake2b(str(id).encode("utf-8"), digest_size=8).digest()
        hashes[place] = int.from_bytes(hashed, "little")
    return hashes


def find_duplicates(
    hashes: Iterable[tuple[str, NDArray[np.uint64]]],
    load: Callable[[str], pa.Table],
    *,
    pass_rows: int = _PASS_ROWS,
) -> list[Duplicate]:
    """Every row whose id an earlier row has, in plan order.

    `hashes` gives, for each shard in plan order, its key and the `hash_ids` of its table's ids;
    `load` gives the table again (its columns id and source_row) for a key, and is called once for
    each shard where a hash was met twice. Holds all hashes, about 32 bytes for each of the
    `pass_rows` rows compared at a time, and the ids of the rows whose hashes met.
    """
    keys: list[str] = []
    arrays: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for key, array in hashes:
        keys.append(key)
        arrays.append(array)
    starts = np.cumsum([len(array) for array in arrays])  # (shards + 1,)
    joined = np.concatenate(arrays)  # (rows,)
    del arrays
    suspects = _repeated(joined, pass_rows)
    shard_of = np.searchsorted(starts, suspects, side="right") - 1
    first: dict[str | int, tuple[str, int]] = {}
    found: list[Duplicate] = []
    for shard in np.unique(shard_of).tolist():
        table = load(keys[shard]).select(["id", "source_row"])
        rows = table.take(suspects[shard_of == shard] - starts[shard])
        for id, row in zip(rows["id"].to_pylist(), rows["source_row"].to_pylist(), strict=True):
            place = (keys[shard], row)
            earlier = first.setdefault(id, place)
            if earlier != place:
                found.append(Duplicate(id, *place, *earlier))
    return found


def _repeated(hashes: NDArray[np.uint64], pass_rows: int) -> NDArray[np.int64]:
    """Sorted places of the values that are in `hashes` more than once."""
    passes = -(-len(hashes) // pass_rows)
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for number in range(passes):
        places = np.flatnonzero(hashes % np.uint64(passes) == np.uint64(number))
        order = np.argsort(hashes[places], kind="stable")
        ordered = hashes[places[order]]
        same = ordered[1:] == ordered[:-1]
        repeated = np.zeros(len(ordered), bool)
        repeated[1:] |= same
        repeated[:-1] |= same
        found.append(places[order[repeated]])
    return np.sort(np.concatenate(found))


def duplicates_error(duplicates: Sequence[Duplicate], plan: Plan) -> UsageError:
    """The error for policy ``fail``: it names both rows of the first few."""
    shards = {shard.key: shard for shard in plan.shards}
    shown = "; ".join(
        f"{d.id!r} in {_place(shards[d.first_shard], d.first_row)} and in "
        f"{_place(shards[d.shard], d.row)}"
        for d in duplicates[:_SHOWN]
    )
    return UsageError(
        f"source: {len(duplicates)} row(s) have the id of an earlier row: {shown}"
        f"{'; ...' if len(duplicates) > _SHOWN else ''}. Make ids unique, or set "
        "source.duplicates to keep_first or dead_letter"
    )


def apply_duplicates(
    rows: ShardRows, shard: Shard, duplicates: Iterable[Duplicate], policy: Duplicates
) -> ShardRows:
    """`rows` without those of `duplicates` that are in this shard.

    With policy ``dead_letter`` they become dead letters; with ``keep_first`` they are gone, and
    the caller counts them. Raises UsageError with ``fail`` if there is one.
    """
    here = {d.row: d for d in duplicates if d.shard == shard.key}
    if not here:
        return rows
    if policy == "fail":
        raise UsageError(f"source: {len(here)} id(s) in shard {shard.key} are in the corpus twice")
    doubled = pc.is_in(rows.table["source_row"], value_set=pa.array(list(here), pa.int64()))
    dead_letters = list(rows.dead_letters)
    if policy == "dead_letter":
        dead_letters += [
            RowReport(row, d.id, _place(shard, row), "the id of an earlier row")
            for row, d in here.items()
        ]
        dead_letters.sort(key=lambda report: report.row)
    return ShardRows(rows.table.filter(pc.invert(doubled)), dead_letters, rows.remarks)


def _place(shard: Shard, row: int) -> str:
    """The file that holds a shard's row, and how far below the start of the shard's piece."""
    for piece in shard.pieces:
        if row < piece.rows:
            return f"{piece.name}:{piece.line} (row {row} from there)"
        row -= piece.rows
    raise ValueError(f"shard {shard.key} has no such row")
