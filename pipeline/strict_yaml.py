"""Strict YAML: sections of keys, checked against a tree of keys, each error with its place.

Nothing is converted by guess: a value must be written as what its key wants.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config_keys import Key, keys_of
from pipeline.errors import UsageError

MAX_FILE_BYTES = 1 << 20
MAX_INT = 2**63 - 1
MAX_DEPTH = 8  # nesting of a value; the deepest legal one needs 4

_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "null": "null",
    "bool": "boolean",
    "int": "integer",
    "float": "float",
    "timestamp": "date",
    "str": "string",
}
_DECIMAL_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_DECIMAL_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
# Strings to YAML 1.1, which PyYAML reads, and numbers to YAML 1.2: 1e3, 008, 0o17.
_OTHER_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+")
_OTHER_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")


class ConfigError(UsageError):
    """A configuration that cannot be run; the message begins with its place, ``file:line``."""


@dataclass(frozen=True)
class Reading:
    """Checked values: section -> key -> value for the keys that were written, and their places."""

    values: dict[str, dict[str, Any]]
    places: dict[tuple[str, str], str]


def read_tree(tree: type, path: str | Path, overrides: Sequence[str] = ()) -> Reading:
    """Read a YAML file and ``section.key=value`` overrides, the last of which wins.

    Raises ConfigError for anything that is not exactly what the tree's keys want.
    """
    keys = keys_of(tree)
    reading = Reading({section: {} for section in keys}, {})
    origin = _Origin(str(path), has_lines=True)
    lines = dict.fromkeys(keys, 1)
    root = _compose(_read_text(path, origin), origin)
    if root is None:
        raise ConfigError(f"{origin.line(1)}: is empty; wanted the sections {', '.join(keys)}")
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"{origin.at(root)}: wanted the sections {', '.join(keys)}; got {_describe(root)}"
        )
    for section, section_node, body in _entries(root, origin, ""):
        where = origin.at(section_node)
        if section not in keys:
            raise ConfigError(f"{where}: {_unknown(section, list(keys), keys)}")
        if not isinstance(body, yaml.MappingNode):
            raise ConfigError(
                f"{where}: {section}: wanted a mapping of keys, got {_describe(body)}; "
                f"its keys: {', '.join(keys[section])}"
            )
        lines[section] = section_node.start_mark.line + 1
        for name, name_node, value in _entries(body, origin, f"{section}: "):
            if name not in keys[section]:
                reason = _unknown(name, list(keys[section]), keys)
                raise ConfigError(f"{origin.at(name_node)}: {section}: {reason}")
            _store(reading, keys[section][name], value, origin)
    for override in overrides:
        _override(reading, override, keys)
    for section, table in keys.items():
        for name, wanted in table.items():
            if wanted.required and name not in reading.values[section]:
                where = origin.line(lines[section])
                raise ConfigError(f"{where}: {section}: missing required key {name!r}")
    return reading


def _override(reading: Reading, override: str, keys: Mapping[str, Mapping[str, Key]]) -> None:
    origin = _Origin("--set " + (override if override.isprintable() else repr(override)), False)
    target, equals, text = override.partition("=")
    section, dot, name = target.partition(".")
    if section in keys and not dot:
        table = ", ".join(k.path for k in keys[section].values())
        raise ConfigError(f"{origin.name}: {section!r} is a section; set one of its keys: {table}")
    if not equals or not dot:
        raise ConfigError(f"{origin.name}: wanted section.key=value")
    if section not in keys:
        raise ConfigError(f"{origin.name}: {_unknown(section, list(keys), keys)}")
    if name not in keys[section]:
        reason = _unknown(name, list(keys[section]), keys)
        raise ConfigError(f"{origin.name}: {section}: {reason}")
    value = _compose(text, origin)
    if value is None:
        raise ConfigError(f'{origin.name}: has no value; write null, or "" for an empty string')
    _store(reading, keys[section][name], value, origin)


def _store(reading: Reading, wanted: Key, node: yaml.Node, origin: _Origin) -> None:
    reading.values[wanted.section][wanted.name] = _value(wanted, node, origin)
    reading.places[wanted.section, wanted.name] = origin.at(node)


@dataclass(frozen=True)
class _Origin:
    """Where a text came from: a file, whose lines are named, or a ``--set``."""

    name: str
    has_lines: bool

    def line(self, number: int) -> str:
        return f"{self.name}:{number}" if self.has_lines else self.name

    def at(self, node: yaml.Node) -> str:
        return self.line(node.start_mark.line + 1)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses anchors, aliases, tags and deep nesting while composing."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        refused = None
        if isinstance(event, yaml.AliasEvent):
            refused = f"alias *{event.anchor} is not supported; write the value out"
        elif event.anchor is not None:
            refused = f"anchor &{event.anchor} is not supported; write the value where it is used"
        elif event.tag is not None:
            refused = f"tag {_show(event.tag)} is not supported; write a plain value"
        elif self.depth >= MAX_DEPTH:
            refused = f"nested deeper than {MAX_DEPTH} levels"
        if refused is not None:
            raise yaml.composer.ComposerError(problem=refused, problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _read_text(path: str | Path, origin: _Origin) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ConfigError(f"{origin.name}: cannot be read: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{origin.name}: is above {MAX_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{origin.line(line)}: is not UTF-8: {error.reason}") from error


def _compose(text: str, origin: _Origin) -> yaml.Node | None:
    """The node of the one document in a text, None where there is none."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{origin.line(line)}: holds the character {ord(text[error.position]):#x}, "
            "which YAML does not allow"
        ) from error
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{origin.line(mark.line + 1)}: YAML: {reason}") from error
    except (ValueError, OverflowError) as error:  # PyYAML on "\UFFFFFFFF" or a huge %YAML number
        where = origin.line(loader.get_mark().line + 1)
        raise ConfigError(f"{where}: YAML: a number out of range: {_show(str(error))}") from error


def _entries(
    node: yaml.MappingNode, origin: _Origin, prefix: str
) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """(name, name node, value node) of a mapping; a name twice, or not a word, is an error."""
    first: dict[str, int] = {}
    for name_node, value in node.value:
        where = f"{origin.at(name_node)}: {prefix}"
        if not isinstance(name_node, yaml.ScalarNode):
            raise ConfigError(f"{where}a key must be a word, got {_describe(name_node)}")
        name = name_node.value
        if name_node.tag == _TAG + "merge":
            raise ConfigError(f"{where}merge key << is not supported; write the keys out")
        if name in first:
            raise ConfigError(f"{where}duplicate key {_show(name)}; first in line {first[name]}")
        first[name] = name_node.start_mark.line + 1
        yield name, name_node, value


def _unknown(name: str, valid: list[str], keys: Mapping[str, Mapping[str, Key]]) -> str:
    elsewhere = [table[name].path for table in keys.values() if name in table]
    near = elsewhere or difflib.get_close_matches(name[:60], valid, n=1, cutoff=0.4)
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    else:
        hint = f"valid keys: {', '.join(valid)}"
    return f"unknown key {_show(name)}; {hint}"


def _value(wanted: Key, node: yaml.Node, origin: _Origin) -> Any:
    if wanted.kind is not tuple:
        return _scalar(wanted, node, origin)
    if isinstance(node, yaml.SequenceNode):
        items = tuple(_scalar(wanted, item, origin) for item in node.value)
        for index, item in enumerate(items):
            if item in items[:index]:
                where = origin.at(node.value[index])
                raise ConfigError(f"{where}: {wanted.path}: {_show(item)} is listed twice")
        if wanted.single and not items:
            raise ConfigError(f"{origin.at(node)}: {wanted.path}: wanted {wanted.wanted}, got []")
        return items
    if wanted.single:
        return (_scalar(wanted, node, origin),)
    hint = (
        f"; write [{json.dumps(_cut(node.value))}]"
        if _kind(node) == "string" and node.value
        else ""
    )
    raise ConfigError(
        f"{origin.at(node)}: {wanted.path}: wanted {wanted.wanted}, got {_describe(node)}{hint}"
    )


def _scalar(wanted: Key, node: yaml.Node, origin: _Origin) -> Any:
    """The value of a scalar, or of one item of a list of strings."""
    kind = _kind(node)
    if kind == "null" and wanted.nullable:
        return None
    if kind == "string":
        if node.value in wanted.choices:
            return node.value
        if wanted.kind in (str, tuple) and not wanted.choices and (node.value or wanted.empty):
            for char in node.value:
                if char == "\0" or "\ud800" <= char <= "\udfff":
                    where = f"{origin.at(node)}: {wanted.path}"
                    raise ConfigError(f"{where}: holds the character {ord(char):#x}")
            return node.value
    elif kind == "boolean" and wanted.kind is bool and node.value.lower() in ("true", "false"):
        return node.value.lower() == "true"
    elif kind in ("integer", "float") and wanted.kind in (int, float):
        number = _number(wanted, node.value, kind)
        if number is not None:
            return number
    raise ConfigError(
        f"{origin.at(node)}: {wanted.path}: wanted {wanted.wanted}, "
        f"got {_describe(node)}{_hint(wanted, node)}"
    )


def _number(wanted: Key, text: str, kind: str) -> int | float | None:
    """The number a text in plain decimal notation means; None where the key does not take it."""
    number: int | float
    if kind == "integer" and _DECIMAL_INT.fullmatch(text):
        number = int(text)
    elif kind == "float" and wanted.kind is float and _DECIMAL_FLOAT.fullmatch(text):
        number = float(text)
    else:
        return None
    below = wanted.low is not None and number < wanted.low
    below = below or (wanted.above is not None and number <= wanted.above)
    high = MAX_INT if wanted.high is None else wanted.high
    if below or number > high:
        return None
    return float(number) if wanted.kind is float else number


def _hint(wanted: Key, node: yaml.Node) -> str:
    """What to write instead, where that is clear."""
    kind = _kind(node)
    free_text = wanted.kind in (str, tuple) and not wanted.choices
    if kind == "string":
        near = difflib.get_close_matches(node.value[:60], wanted.choices, n=1)
        return f"; did you mean {near[0]!r}?" if near else ""
    if kind == "mapping":
        return '; quote a text that holds ": "' if free_text else ""
    if kind != "list" and (node.value in wanted.choices or (free_text and kind != "null")):
        return f'; quote it: "{_cut(node.value)}"'
    if kind == "integer" and wanted.kind in (int, float):
        if not _DECIMAL_INT.fullmatch(node.value) or int(node.value) > MAX_INT:
            return f"; write it in plain decimal digits, at most {MAX_INT}"
    elif kind == "float" and wanted.kind is float and not _DECIMAL_FLOAT.fullmatch(node.value):
        return "; write a finite number in plain decimal digits"
    return ""


def _kind(node: yaml.Node) -> str:
    """What a value is to YAML: 1.1 as PyYAML reads it, and 1.2 where that sees a number."""
    if isinstance(node, yaml.SequenceNode):
        return "list"
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    kind = _KINDS.get(node.tag.removeprefix(_TAG), "special value")
    if kind == "string" and isinstance(node, yaml.ScalarNode) and node.style is None:
        if _OTHER_INT.fullmatch(node.value):
            return "integer"
        if _OTHER_FLOAT.fullmatch(node.value):
            return "float"
    return kind


def _describe(node: yaml.Node) -> str:
    kind = _kind(node)
    if kind in ("list", "mapping"):
        return f"a {kind}"
    if kind == "null":
        return "null"
    if kind == "string":
        return f"the string {_show(node.value)}" if node.value else "an empty string"
    return f"the {kind} {_cut(node.value)}"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _show(text: str) -> str:
    return repr(_cut(text))
