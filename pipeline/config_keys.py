"""What a configuration key takes, read from the dataclass field that holds it.

A tree is a dataclass whose fields are sections; a section is a dataclass whose fields are keys. The
type hint says str, int, float, bool, a tuple of str, or Literal words; ``meta`` says the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints


def meta(
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    fingerprint: bool = False,
    empty: bool = False,
    single: bool = False,
) -> Mapping[str, Any]:
    """The metadata of a key's field.

    choices: the words it may take; low, above (exclusive), high: bounds of a number; fingerprint:
    it changes vectors or rows; empty: the string may be empty; single: one string stands for a
    list of one.
    """
    limits = {"choices": choices, "low": low, "above": above, "high": high}
    return {"doc": doc, "fingerprint": fingerprint, "empty": empty, "single": single, **limits}


@dataclass(frozen=True)
class Key:
    """What one key takes, from its field's type hint and metadata."""

    section: str
    name: str
    kind: type | None  # str, int, float, bool, tuple, or None where only words are taken
    nullable: bool
    default: Any  # MISSING for a required key
    doc: str
    choices: tuple[str, ...]
    low: float | None
    above: float | None
    high: float | None
    fingerprint: bool
    empty: bool
    single: bool

    @property
    def path(self) -> str:
        """``section.name``."""
        return f"{self.section}.{self.name}"

    @property
    def required(self) -> bool:
        """Whether the key has no default."""
        return self.default is MISSING

    @property
    def wanted(self) -> str:
        """The values the key takes, in words."""
        bounds = "".join(
            f" {sign} {limit:g}"
            for sign, limit in ((">=", self.low), (">", self.above), ("and <=", self.high))
            if limit is not None
        )
        words = ", ".join(self.choices)
        forms = [f"one of {words}" if len(self.choices) > 1 else words] if words else []
        if self.kind is tuple:
            forms += ["a string", "a list of strings"] if self.single else ["a list of strings"]
        elif self.kind is not None:
            noun = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
            forms.append(noun[self.kind] + bounds)
        if self.nullable:
            forms.append("null")
        return " or ".join(forms)


@cache
def keys_of(tree: type) -> Mapping[str, Mapping[str, Key]]:
    """Every key of a tree: section name -> key name -> Key, in the order of the fields."""
    classes = get_type_hints(tree)
    return {
        s.name: {f.name: _key_of(s.name, classes[s.name], f) for f in fields(classes[s.name])}
        for s in fields(tree)
    }


def _key_of(section: str, cls: type, made: Field[Any]) -> Key:
    hint = get_type_hints(cls)[made.name]
    members = [hint] if get_origin(hint) in (None, tuple, Literal) else list(get_args(hint))
    kinds = [get_origin(m) or m for m in members]
    kinds = [k for k in kinds if k not in (type(None), Literal)]
    return Key(
        section=section,
        name=made.name,
        kind=kinds[0] if kinds else None,
        nullable=type(None) in members,
        default=made.default,
        **made.metadata,
    )
