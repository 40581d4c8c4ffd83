"""Texts to embed: those of a file, or the docstrings of the Python standard library."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from pathlib import Path

DOCSTRINGS = "standard library docstrings"


def read_texts(path: Path | None) -> list[str]:
    """path: objects with a `text`, one a line; None for the docstrings."""
    if path is not None:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line)["text"] for line in lines if line]
    texts = []
    for module in sorted(
        m.name for m in pkgutil.iter_modules() if m.name in sys.stdlib_module_names
    ):
        if module in ("antigravity", "this", "idlelib"):
            continue
        try:
            members = vars(importlib.import_module(module)).values()
        except ImportError:
            continue
        texts += [inspect.getdoc(m) or "" for m in members if inspect.isroutine(m)]
    return [text for text in texts if text]
