"""A JSON object on disk whose values are read by key and type; every refusal names file and key."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from arch.errors import CheckpointError

V = TypeVar("V")

_MISSING: Any = object()


class JsonFile:
    """The object of one JSON file. Raises CheckpointError where the file or a value is wrong."""

    def __init__(self, path: Path, data: Mapping[str, Any], within: str = "") -> None:
        """within: the keys that lead to the object where it is not the whole file, dotted."""
        self.path = path
        self.data = data
        self._within = within

    @classmethod
    def read(cls, path: Path) -> JsonFile:
        """Read a file that must hold a JSON object."""
        data = read_json(path)
        if not isinstance(data, dict):
            raise CheckpointError(path, f"holds {_kind(data)}, wanted a JSON object")
        return cls(path, data)

    @classmethod
    def read_if_present(cls, path: Path) -> JsonFile:
        """Read a file that may be absent; an absent one has no keys."""
        return cls.read(path) if path.exists() else cls(path, {})

    def error(self, key: str, wanted: str) -> CheckpointError:
        """The error to raise for the value of `key`."""
        got = repr(self.data[key]) if key in self.data else "nothing"
        return CheckpointError(self.path, f"'{self._within}{key}' is {got}, wanted {wanted}")

    def integer(self, key: str, *, minimum: int = 1, default: int | None = _MISSING) -> Any:
        """An integer >= minimum. `default` serves an absent or null key; without it both fail."""
        value = self._value(key, default, f"an integer >= {minimum}")
        if value is default and default is not _MISSING:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, f"an integer >= {minimum}")
        return value

    def number(self, key: str, *, default: float = _MISSING) -> float:
        """A positive number."""
        value = self._value(key, default, "a positive number")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.error(key, "a positive number")
        return float(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self._value(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def string(self, key: str, *, default: str | None = _MISSING) -> Any:
        """A string."""
        value = self._value(key, default, "a string")
        if value is not default and not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def choice(self, key: str, choices: Mapping[str, V], *, default: str = _MISSING) -> V:
        """The meaning of a named choice."""
        wanted = "one of " + ", ".join(choices)
        value = self._value(key, default, wanted)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, wanted)
        return choices[value]

    def names(self, key: str, count: int, allowed: Sequence[str]) -> tuple[str, ...]:
        """A list of `count` names, each among `allowed`."""
        value = self.data.get(key)
        if not isinstance(value, list) or not all(name in allowed for name in value):
            raise self.error(key, f"a list of names among {', '.join(allowed)}")
        if len(value) != count:
            raise self.error(key, f"{count} names, not {len(value)}")
        return tuple(value)

    def object(self, key: str) -> JsonFile | None:
        """An object within this one; None where the key is absent or null."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return JsonFile(self.path, value, f"{self._within}{key}.")

    def known_keys(self, known: Iterable[str]) -> None:
        """Refuse a key that is not in `known`."""
        allowed = sorted(known)
        for key in self.data:
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(allowed)}"
                raise CheckpointError(self.path, f"unknown key '{self._within}{key}'{hint}")

    def _value(self, key: str, default: Any, wanted: str) -> Any:
        value = self.data.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.error(key, wanted)
        return default


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises CheckpointError where it cannot be read or parsed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deep
        raise CheckpointError(path, f"is not valid JSON: {error}") from error


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return names.get(type(value), "null")
