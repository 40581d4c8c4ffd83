"""What is done to one shard, in three stages: read, embed, write. No Ray.

Between stages a shard travels as one `Payload`: its rows as one Arrow stream, so that it cannot be
split, and everything that went wrong with its rows as data. A stage never raises for a row or for a
shard: what fails the shard is in `Payload.failure`, and later stages pass it on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from drivers.errors import DeviceLost
from pipeline.config import CHUNK_COLUMNS, RunConfig
from pipeline.embedder import Embedder
from pipeline.errors import RayvecError
from pipeline.sink import (
    CHUNK_FIELDS,
    DeadLetter,
    ShardStats,
    hash_content,
    part_schema,
    write_part,
)
from pipeline.source import Duplicate, Shard, ShardRows, apply_duplicates, read_shard
from pipeline.source.types import RowReport, digest
from pipeline.store import Store, StoreError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # doubled at each further attempt


@dataclass(frozen=True)
class ShardTask:
    """One shard to do. work_key names it in the index; dropped are rows whose id is a duplicate."""

    shard: Shard
    work_key: str
    dropped: tuple[Duplicate, ...] = ()

    @staticmethod
    def of(shard: Shard, dropped: Sequence[Duplicate], policy: str) -> ShardTask:
        """The task for a shard; which of its rows are dropped is part of its name."""
        if not dropped:
            return ShardTask(shard, shard.key)
        rows = [duplicate.row for duplicate in dropped]
        return ShardTask(shard, digest(shard.key, policy, rows), tuple(dropped))

    def to_json(self) -> str:
        """The task as one JSON text."""
        dropped = [asdict(duplicate) for duplicate in self.dropped]
        return json.dumps([self.shard.to_json(), self.work_key, dropped])

    @staticmethod
    def from_json(text: str) -> ShardTask:
        """The task that `to_json` wrote."""
        shard, work_key, dropped = json.loads(text)
        return ShardTask(
            Shard.from_json(shard), work_key, tuple(Duplicate(**one) for one in dropped)
        )


@dataclass(frozen=True)
class Payload:
    """A shard between two stages.

    table: the rows as an Arrow stream, empty once written or failed. letters: dead letters so far.
    seconds: by stage. failure: why the shard failed, or None.
    """

    work_key: str
    source: list[dict[str, Any]]
    table: bytes = b""
    letters: list[DeadLetter] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    tokens: int = 0
    failure: str | None = None

    def to_row(self) -> dict[str, Any]:
        """The payload as one row of plain values: the table as it is, the rest as JSON."""
        rest = {k: v for k, v in vars(self).items() if k != "table"}
        rest["letters"] = [vars(letter) for letter in self.letters]
        return {"payload": json.dumps(rest), "table": self.table}

    @staticmethod
    def from_row(row: dict[str, Any]) -> Payload:
        """The payload that `to_row` wrote."""
        rest = json.loads(row["payload"])
        rest["letters"] = [DeadLetter(**letter) for letter in rest["letters"]]
        return Payload(**rest, table=row["table"])


def pack_table(table: pa.Table) -> bytes:
    """A table as one Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack_table(data: bytes) -> pa.Table:
    """The table of an Arrow stream, over the same memory."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


class ShardReader:
    """The first stage: rows of a shard, without duplicates."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def __call__(self, task: ShardTask) -> Payload:
        """Read one shard; its rows have the columns of `ShardRows.table`."""
        payload = Payload(task.work_key, [asdict(piece) for piece in task.shard.pieces])
        return _timed("read", payload, lambda: self._read(task, payload), self.config)

    def _read(self, task: ShardTask, payload: Payload) -> Payload:
        storage = self.config.storage
        rows: ShardRows = read_shard(
            task.shard, self.config.source, endpoint=storage.endpoint, region=storage.region
        )
        if task.dropped:
            policy = self.config.source.duplicates
            rows = apply_duplicates(rows, task.shard, list(task.dropped), policy)
        return replace(
            payload,
            table=pack_table(rows.table),
            letters=[_letter(report) for report in rows.dead_letters],
            rows=rows.table.num_rows,
        )


class ShardEmbedder:
    """The second stage: vectors for the rows of a shard."""

    def __init__(self, config: RunConfig, embedder: Embedder) -> None:
        self.config = config
        self.embedder = embedder

    def __call__(self, payload: Payload) -> Payload:
        """Embed one shard; its rows get the columns of the part."""
        if payload.failure is not None:
            return payload
        return _timed("embed", payload, lambda: self._embed(payload), self.config)

    @cached_property
    def chunk_tokens(self) -> int | None:
        """Content tokens of a chunk, or None where texts are not cut."""
        if self.config.chunking.max_tokens is not None:
            return self.config.chunking.max_tokens
        if self.config.failure.too_long == "chunk":
            return self.embedder.content_tokens(self.prompt)
        return None

    @cached_property
    def prompt(self) -> str:
        """The literal prompt of every text."""
        return self.embedder.prompt_for(self.config.model.prompt, self.config.model.prompt_text)

    def _embed(self, payload: Payload) -> Payload:
        table = unpack_table(payload.table)
        texts = table["text"].to_pylist()
        table, texts = self._chunked(table, texts)
        tokenized = self.embedder.tokenize_each(texts, self.prompt)
        reasons = dict(tokenized.refused)
        if self.config.failure.too_long == "dead_letter":
            reason = f"more than {self.embedder.max_seq_len} tokens, the limit of this run"
            reasons |= {int(row): reason for row in tokenized.rows[tokenized.truncated]}
        source_rows = table["source_row"].to_numpy()
        bad = np.isin(source_rows, source_rows[list(reasons)])  # all chunks of a bad row
        good = np.flatnonzero(~bad[tokenized.rows])
        vectors = self.embedder.encode_tokens([tokenized.encodings[i] for i in good])
        rows = tokenized.rows[good]
        lengths = tokenized.lengths[good]
        result = self._part_table(
            table.take(pa.array(rows)),
            vectors,
            lengths,
            tokenized.truncated[good],
            [hash_content(texts[row]) for row in rows],
        )
        return replace(
            payload,
            table=pack_table(result),
            letters=[*payload.letters, *_letters_of(table, reasons, payload.source)],
            rows=result.num_rows,
            tokens=int(lengths.sum()),
        )

    def _chunked(self, table: pa.Table, texts: list[str]) -> tuple[pa.Table, list[str]]:
        """One row a chunk, with its text, number and character span; the table as it is without."""
        if self.chunk_tokens is None:
            return table, texts
        rows: list[int] = []
        spans: list[tuple[int, int, int]] = []
        overlap = self.config.chunking.overlap_tokens
        for row, found in enumerate(self.embedder.chunk_spans(texts, self.chunk_tokens, overlap)):
            for number, (start, end) in enumerate(found or [(0, len(texts[row]))]):
                rows.append(row)
                spans.append((number, start, end))
        chunks = [texts[row][start:end] for row, (_, start, end) in zip(rows, spans)]
        place = table.schema.get_field_index("text")
        table = table.drop_columns(["text"]).take(pa.array(rows, pa.int64()))
        table = table.add_column(place, "text", pa.array(chunks, pa.string()))
        for place, column in enumerate(CHUNK_FIELDS):
            values = pa.array([span[place] for span in spans], column.type)
            table = table.append_column(column, values)
        return table, chunks

    def _part_table(
        self,
        rows: pa.Table,
        vectors: NDArray[np.float32],
        tokens: NDArray[np.int64],
        truncated: NDArray[np.bool_],
        hashes: Sequence[bytes],
    ) -> pa.Table:
        chunked = self.chunk_tokens is not None
        own = {"id", "text", "source_row", *(CHUNK_COLUMNS if chunked else ())}
        kept = self.config.source.keep_columns
        keep = [column for column in rows.schema if column.name not in own or column.name in kept]
        keep = [column for column in keep if column.name != "id"]
        vector_type = self.config.sink.vector_type
        schema = part_schema(
            rows.schema.field("id").type, pa.schema(keep), vectors.shape[1], vector_type, chunked
        )
        flat = pa.array(vectors.reshape(-1).astype(vector_type, copy=False))
        columns = {name: rows[name] for name in rows.column_names}
        columns |= {
            "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
            "n_tokens": pa.array(tokens, pa.int32()),
            "truncated": pa.array(truncated, pa.bool_()),
            "content_hash": pa.array(hashes, schema.field("content_hash").type),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)


class ShardWriter:
    """The third stage: a shard's part and receipt."""

    def __init__(self, config: RunConfig, epoch: int, fingerprint: str) -> None:
        self.config = config
        self.epoch = epoch
        self.fingerprint = fingerprint

    def __call__(self, payload: Payload) -> Payload:
        """Write one shard; what comes back has no rows any more, only the counts."""
        if payload.failure is not None:
            return replace(payload, table=b"")
        return _timed("write", payload, lambda: self._write(payload), self.config)

    @cached_property
    def store(self) -> Store:
        """Where the index is; opened at the first shard."""
        storage = self.config.storage
        return Store.open(self.config.sink.uri, endpoint=storage.endpoint, region=storage.region)

    def _write(self, payload: Payload) -> Payload:
        receipt = write_part(
            self.store,
            payload.work_key,
            self.epoch,
            self.fingerprint,
            unpack_table(payload.table),
            payload.letters,
            ShardStats(payload.source, payload.seconds),
        )
        return replace(payload, table=b"", rows=receipt.rows, tokens=receipt.tokens)


def _timed(stage: str, payload: Payload, work: Callable[[], Payload], config: RunConfig) -> Payload:
    """Run a stage and record its seconds; a failing store is tried again, other errors fail it."""
    started = time.monotonic()
    for attempt in range(config.failure.max_shard_retries + 1):
        try:
            done = work()
        except RayvecError as error:
            failure = str(error)
            if not isinstance(error, StoreError) and not isinstance(error.__cause__, StoreError):
                break
            logger.warning("shard %s: %s (attempt %d)", payload.work_key, error, attempt + 1)
            if attempt < config.failure.max_shard_retries:
                time.sleep(RETRY_SECONDS * 2**attempt)
        except DeviceLost:  # fails every shard in this process: only another one can go on
            raise
        except Exception as error:  # a fault of ours or of a library fails this shard alone
            logger.exception("shard %s: %s", payload.work_key, stage)
            failure = f"{type(error).__name__}: {error}"
            break
        else:
            seconds = {**payload.seconds, stage: time.monotonic() - started}
            return replace(done, seconds=seconds)
    return replace(payload, table=b"", failure=f"{stage}: {failure}")


def _letter(report: RowReport) -> DeadLetter:
    return DeadLetter(report.row, report.id, report.where, report.reason)


def _letters_of(
    table: pa.Table, bad: dict[int, str], source: Sequence[dict[str, Any]]
) -> list[DeadLetter]:
    """Dead letters of rows that could not be embedded. One a row, however many chunks it had."""
    letters: dict[int, DeadLetter] = {}
    for row, reason in sorted(bad.items()):
        source_row = int(table["source_row"][row].as_py())
        where = f"{_piece_of(source, source_row)}: row {source_row} of the shard"
        letter = DeadLetter(source_row, table["id"][row].as_py(), where, reason)
        letters.setdefault(source_row, letter)
    return list(letters.values())


def _piece_of(source: Sequence[dict[str, Any]], row: int) -> str:
    """Name of the file that a row of the shard comes from."""
    for piece in source:
        if row < piece["rows"]:
            return str(piece["name"])
        row -= piece["rows"]
    return "beyond the shard"
