"""Texts for `rayvec embed`: plain lines or JSON lines, read as a stream of blocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from pipeline.errors import UsageError

InputFormat = Literal["lines", "jsonl"]

BOM = "\ufeff"


@dataclass(frozen=True)
class TextBlock:
    """Some consecutive rows. ids are None where the input has none."""

    first_row: int
    texts: list[Any]
    ids: list[str | int] | None


def read_blocks(
    stream: Iterable[bytes],
    name: str,
    input_format: InputFormat,
    *,
    text_key: str,
    id_key: str,
    block_rows: int,
) -> Iterator[TextBlock]:
    """Blocks of up to `block_rows` rows.

    lines: a row a line, without its line end; an empty line is an empty text. jsonl: a JSON object
    a line with its text under `text_key` and, in all rows or none, an id under `id_key`; blank
    lines are passed over. Raises UsageError with name and line for what is not UTF-8, is not
    such an object, or lacks the key. What the text is is left to the tokenizer to judge.
    """
    rows = _decoded(stream, name)
    parsed: Iterable[tuple[str | int | None, Any]]
    if input_format == "lines":
        parsed = ((None, text) for _, text in rows)
    else:
        parsed = _objects(rows, name, text_key, id_key)
    iterator = iter(parsed)
    first_row = 0
    has_ids: bool | None = None
    while block := list(islice(iterator, block_rows)):
        for offset, (row_id, _) in enumerate(block):
            has_ids = row_id is not None if has_ids is None else has_ids
            if has_ids != (row_id is not None):
                raise UsageError(
                    f"{name}: row {first_row + offset}: '{id_key}' is present in some rows only"
                )
        ids = [row_id for row_id, _ in block if row_id is not None]
        yield TextBlock(first_row, [text for _, text in block], ids or None)
        first_row += len(block)


def _decoded(stream: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its line end)."""
    for number, raw in enumerate(stream, start=1):
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{name}:{number}: is not UTF-8: byte 0x{line[error.start]:02X} at {error.start}"
            ) from error
        if number == 1 and raw.startswith(BOM.encode()):
            text = text.removeprefix(BOM)
            if not text and not raw.endswith(b"\n"):  # the file is a BOM and nothing else
                return
        yield number, text


def _objects(
    rows: Iterable[tuple[int, str]], name: str, text_key: str, id_key: str
) -> Iterator[tuple[str | int | None, Any]]:
    """(id, text) of each JSON line."""
    for number, line in rows:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name}:{number}: is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UsageError(f"{name}:{number}: wanted a JSON object, got {type(row).__name__}")
        if text_key not in row:
            have = ", ".join(f"'{key}'" for key in row) or "none"
            raise UsageError(f"{name}:{number}: has no key '{text_key}'; its keys are {have}")
        row_id = row.get(id_key)
        if row_id is not None and (isinstance(row_id, bool) or not isinstance(row_id, (str, int))):
            raise UsageError(
                f"{name}:{number}: '{id_key}' is {row_id!r}, wanted a string or integer"
            )
        yield row_id, row[text_key]
