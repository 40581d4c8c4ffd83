"""Functions and classes of Python files as rows."""

from __future__ import annotations

import ast
import email
import os
from pathlib import Path

from source_corpus import config, read_all

from pipeline.source import plan_shards

SHAPES = '''"""Module."""
import functools

@functools.cache
def area(
    w: float,
    h: float = 1.0,
) -> float:
    """Area.

    In square metres.
    """
    return w * h  # é

class Box:
    """A box."""

    side = 1

    @property
    def volume(self):
        def cube(x):
            return x ** 3
        return cube(self.side)

    class Lid:
        async def open(self): ...

if True:
    def pick(): return 1
else:
    def pick(): return 2
'''


def test_definitions_have_qualified_names_and_their_source(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "shapes.py").write_text(SHAPES, encoding="utf-8")
    (tmp_path / "pkg" / "nothing.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "pkg" / "empty.py").write_bytes(b"")
    kept = ("path", "name", "kind", "line")
    got = read_all(config("python", tmp_path, keep_columns=kept))
    names = ["area", "Box", "Box.volume", "Box.volume.cube", "Box.Lid", "Box.Lid.open"]
    names += ["pick", "pick#2"]
    assert got.ids == [f"pkg/shapes.py:{name}" for name in names]
    texts = dict(zip(names, got.texts, strict=True))
    assert texts["area"] == SHAPES[SHAPES.index("@functools") : SHAPES.index("\n\nclass")]
    assert texts["Box.volume"] == (
        "@property\ndef volume(self):\n    def cube(x):\n        return x ** 3\n"
        "    return cube(self.side)"
    )
    assert texts["Box.Lid.open"] == "async def open(self): ..."
    assert texts["pick#2"] == "def pick(): return 2"
    row = got.table.to_pylist()[2]
    assert {name: row[name] for name in kept} == {
        "path": "pkg/shapes.py",
        "name": "Box.volume",
        "kind": "function",
        "line": SHAPES[: SHAPES.index("def volume")].count("\n") + 1,
    }


def test_overloads_get_numbers_and_large_files_are_cut(tmp_path: Path) -> None:
    code = "".join(f"def f(x={i}): pass\n" for i in range(10))
    (tmp_path / "a.py").write_text(code, encoding="utf-8")
    source = config("python", tmp_path, rows_per_shard=4)
    assert [shard.rows for shard in plan_shards(source).shards] == [4, 4, 2]
    assert read_all(source).ids == ["a.py:f", *(f"a.py:f#{i}" for i in range(2, 11))]


def test_a_file_that_does_not_parse_is_one_dead_letter(tmp_path: Path) -> None:
    files = {
        "broken.py": b"x = 1\ndef f(:\n    pass\n",
        "bytes.py": b"# caf\xe9\ndef g(): pass\n",
        "coded.py": b"# -*- coding: latin-1 -*-\n\ndef h(): return '\xe9'\n",
        "deep.py": b"x = " + b"(" * 5000 + b")" * 5000,
        "nul.py": b"x = 1\0\n",
        "crlf.py": b"\xef\xbb\xbfdef i():\r\n    return '\\d'\r\n",
        "rot13.py": b"# coding: rot13\n",
        "unknown.py": b"# coding: klingon\n",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    got = read_all(config("python", tmp_path))
    assert dict(zip(got.ids, got.texts, strict=True)) == {
        "coded.py:h": "def h(): return 'é'",
        "crlf.py:i": "def i():\n    return '\\d'",
    }
    assert [r.id for r in got.dead_letters] == [
        "broken.py",
        "bytes.py",
        "deep.py",
        "nul.py",
        "rot13.py",
        "unknown.py",
    ]
    assert got.places[0] == "broken.py:2"
    assert all(report.reason for report in got.dead_letters)


def test_the_email_package_of_the_standard_library() -> None:
    folder = Path(os.path.dirname(email.__file__))
    got = read_all(config("python", folder, rows_per_shard=100))
    assert got.dead_letters == []
    want = 0
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            want += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    assert len(got.ids) == len(set(got.ids)) == want
    texts = dict(zip(got.ids, got.texts, strict=True))
    assert texts["__init__.py:message_from_file"].startswith("def message_from_file(fp, ")
    assert "message.py:Message.get_payload" in texts
    for id, text in texts.items():
        assert id.rpartition(".")[2].partition("#")[0].rpartition(":")[2] in text
        ast.parse(text)
