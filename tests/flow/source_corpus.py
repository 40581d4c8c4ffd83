"""Small corpora for the source tests, and all rows of one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import SourceConfig
from pipeline.source import RowReport, plan_shards, read_shard


@dataclass(frozen=True)
class Corpus:
    """Every row of a plan, in plan order."""

    table: pa.Table
    dead_letters: list[RowReport]
    remarks: list[RowReport]

    @property
    def texts(self) -> list[str]:
        return self.table["text"].to_pylist()  # type: ignore[no-any-return]

    @property
    def ids(self) -> list[Any]:
        return self.table["id"].to_pylist()  # type: ignore[no-any-return]

    @property
    def places(self) -> list[str]:
        return [report.where for report in self.dead_letters]


def config(format: Any, *places: Path | str, **keys: Any) -> SourceConfig:
    """A source section over `places`."""
    return SourceConfig(format=format, uri=tuple(map(str, places)), **keys)


def read_all(source: SourceConfig, *, endpoint: str | None = None) -> Corpus:
    """Plan and read everything; rows must add up shard by shard."""
    plan = plan_shards(source, endpoint=endpoint)
    tables, dead_letters, remarks = [], [], []
    for shard in plan.shards:
        rows = read_shard(shard, source, endpoint=endpoint)
        assert rows.rows == shard.rows
        numbers = rows.table["source_row"].to_pylist() + [r.row for r in rows.dead_letters]
        assert sorted(numbers) == list(range(shard.rows))
        assert rows.table.schema == shard.schema
        tables.append(rows.table)
        dead_letters += rows.dead_letters
        remarks += rows.remarks
    assert plan.num_rows == sum(shard.rows for shard in plan.shards)
    return Corpus(pa.concat_tables(tables), dead_letters, remarks)


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """One JSON line a row."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
