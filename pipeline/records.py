"""Strict reading of the small JSON objects an index is made of: receipts, heads, identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from pipeline.errors import RayvecError

T = TypeVar("T")


class IndexCorruptError(RayvecError):
    """Something in an index is missing, damaged, edited by hand or from a newer version."""


class Record:
    """One JSON object, taken apart field by field; every complaint says where it was found."""

    def __init__(self, fields: Mapping[str, object], where: str) -> None:
        self._left = dict(fields)
        self.where = where

    @staticmethod
    def parse(data: bytes, where: str, *, format_number: int) -> Record:
        """Parse `data`, whose field "format" must be at most `format_number`."""
        try:
            fields = json.loads(data)
        except ValueError as error:
            raise IndexCorruptError(f"{where}: not JSON ({error})") from error
        if not isinstance(fields, dict):
            raise IndexCorruptError(f"{where}: wanted a JSON object, got {type(fields).__name__}")
        record = Record(fields, where)
        found = record.take("format", int)
        if found > format_number:
            raise IndexCorruptError(
                f"{where}: format {found} was written by a newer rayvec; "
                f"this one reads up to {format_number}"
            )
        if found != format_number:
            raise IndexCorruptError(f"{where}: unknown format {found}; wanted {format_number}")
        return record

    def take(self, name: str, kind: type[T] | tuple[type[T], ...]) -> T:
        """Take the field `name`, which must be there and of (one of) the type(s) `kind`."""
        if name not in self._left:
            raise IndexCorruptError(f"{self.where}: the field {name!r} is missing")
        value = self._left.pop(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise IndexCorruptError(f"{self.where}: {name!r} has an unexpected value {value!r:.80}")
        return value

    def count(self, name: str) -> int:
        """Take a whole number that is not negative."""
        value = self.take(name, int)
        if value < 0:
            raise IndexCorruptError(f"{self.where}: {name!r} is negative: {value}")
        return value

    def optional(self, name: str, kind: type[T] | tuple[type[T], ...]) -> T | None:
        """Take a field that must be there but may be null."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return self.take(name, kind)

    def records(self, name: str) -> list[Record]:
        """Take a list of JSON objects."""
        found = []
        for at, item in enumerate(self.take(name, list)):
            where = f"{self.where}: {name}[{at}]"
            if not isinstance(item, dict):
                raise IndexCorruptError(f"{where}: wanted an object, got {item!r:.80}")
            found.append(Record(item, where))
        return found

    def mapping(self, name: str, kinds: tuple[type, ...]) -> dict[str, object]:
        """Take an object whose values are all of one of `kinds`."""
        return checked_values(self.take(name, dict), kinds, f"{self.where}: {name}")

    def rest(self, kinds: tuple[type, ...]) -> dict[str, object]:
        """Take every field that is left, whose values are all of one of `kinds`."""
        left, self._left = self._left, {}
        return checked_values(left, kinds, self.where)

    def done(self) -> None:
        """Every field must have been taken by now."""
        if self._left:
            raise IndexCorruptError(f"{self.where}: unknown field {sorted(self._left)[0]!r}")


def checked_values(
    fields: Mapping[str, object], kinds: tuple[type, ...], where: str
) -> dict[str, object]:
    """`fields` as a plain dict, whose values must be of one of `kinds`."""
    for name, value in fields.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise IndexCorruptError(f"{where}: {name!r} has an unexpected value {value!r:.80}")
    return dict(fields)


def canonical(fields: Mapping[str, object]) -> bytes:
    """The one JSON text of `fields` that checksums are taken of."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def pretty(fields: Mapping[str, object]) -> bytes:
    """`fields` as JSON that people can read."""
    return json.dumps(fields, indent=1, ensure_ascii=False).encode() + b"\n"
