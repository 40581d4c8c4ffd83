"""Python source: every function and class of a .py file is one row.

The id is ``path:qualified.name``; a name that a file defines again (overloads, two branches of an
if) gets ``#2``, ``#3`` and so on, in order. The text is the definition as it stands in the file,
from its first decorator to its last line, without its indentation: signature, docstring, body. A
class's text includes its methods, which are rows of their own too, and so are functions inside
functions. Statements outside any definition are not in any row. A file that does not parse is one
dead letter. Kept columns may be path, name, kind ("class" or "function") and line.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipeline.config import SourceConfig
from pipeline.source.files import Files
from pipeline.source.rows import PieceRows, RowCollector, SpanBuilder
from pipeline.source.types import ColumnTypes, Piece, SourceFile, Span

SUFFIXES = (".py",)
COLUMNS = ("path", "name", "kind", "line")


@dataclass(frozen=True, slots=True)
class Definition:
    """One function or class."""

    name: str
    kind: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Unparsable:
    """Why a file has no definitions, and the line that says so."""

    line: int
    reason: str


def scan(
    files: Files, file: SourceFile, source: SourceConfig, max_rows: int | None
) -> tuple[tuple[Span, ...], ColumnTypes]:
    """Parse `file` and count its definitions."""
    spans = SpanBuilder(source.rows_per_shard, max_rows)
    with files.stream(file) as stream:
        found = find_definitions(stream.read())
    if isinstance(found, Unparsable):
        spans.add(0, 1, found.line, file.size)
    else:
        for row, definition in enumerate(found):
            spans.add(row, row + 1, definition.line, len(definition.text))
            if spans.full:
                break
    types = {name: pa.int64() if name == "line" else pa.string() for name in source.keep_columns}
    return spans.finish(), ColumnTypes(pa.string(), types)


def read(
    files: Files, piece: Piece, source: SourceConfig, schema: pa.Schema, first_row: int
) -> PieceRows:
    """The definitions of one piece."""
    rows = RowCollector(schema, first_row)
    with files.stream(piece.file) as stream:
        found = find_definitions(stream.read())
    if isinstance(found, Unparsable):
        rows.reject(f"{piece.name}:{found.line}", piece.name, found.reason)
        return rows.finish()
    for definition in found[piece.start : piece.end]:
        values = {
            "path": piece.name,
            "name": definition.name,
            "kind": definition.kind,
            "line": definition.line,
        }
        kept = [values[name] for name in source.keep_columns]
        rows.accept(f"{piece.name}:{definition.name}", definition.text, kept)
    return rows.finish()


def find_definitions(data: bytes) -> list[Definition] | Unparsable:
    """The definitions in a Python file, in the order in which they start; or why there are none."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = io.TextIOWrapper(io.BytesIO(data), encoding).read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        return Unparsable(error.lineno or 1, f"does not parse: {error.msg}")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Unparsable(line, f"not {error.encoding} at byte {error.start}")
    except (RecursionError, MemoryError):
        return Unparsable(1, "does not parse: nested too deeply")
    except (ValueError, LookupError) as error:
        return Unparsable(1, f"does not parse: {error}")
    lines = source.split("\n")
    found: list[Definition] = []
    seen: Counter[str] = Counter()
    for node, name in _walk(tree):
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name}#{seen[name]}"
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        found.append(Definition(label, kind, node.lineno, _text(node, lines)))
    return found


_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _walk(tree: ast.AST) -> Iterator[tuple[_Node, str]]:
    """Every definition below `tree` with its qualified name, outer ones first."""
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, prefix = pending.pop()
        if isinstance(node, _Node):
            yield node, prefix + node.name
            prefix = f"{prefix}{node.name}."
        pending.extend((child, prefix) for child in reversed(list(ast.iter_child_nodes(node))))


def _text(node: _Node, lines: list[str]) -> str:
    """The source of a definition with its own indentation taken off each line that has it."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    taken = lines[first - 1 : node.end_lineno]
    indent = taken[0][: len(taken[0]) - len(taken[0].lstrip())]
    return "\n".join(line.removeprefix(indent) for line in taken)
