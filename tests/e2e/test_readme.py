"""The README's commands and its Python, run as they stand there but for the places they name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from pipeline.cli import main
from tests.conftest import MINILM
from tests.e2e.runs import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
FEW_ROWS = ["--set", "source.limit=12", "--set", "source.rows_per_shard=6"]


def commands() -> list[list[str]]:
    """The words after `rayvec` of every command line, in order."""
    lines = [line.removeprefix("$ ") for _, block in BLOCKS for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("rayvec ")]


@pytest.fixture
def place(tmp_path: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The current folder holds what the README names; its own places stand for the README's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", ray_address)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    (tmp_path / "corpus.jsonl").write_text('{"id": 1, "text": "Rivers carry water."}\n')
    (yaml_block,) = [block for kind, block in BLOCKS if kind == "yaml"]
    tree = yaml.safe_load(yaml_block)
    tree["model"]["path"] = MINILM
    tree["source"] |= {"format": "jsonl", "uri": "corpus.jsonl"}
    tree["sink"]["uri"] = "index"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    return {"s3://bucket/index/": "index", "MODEL": MINILM}


def test_every_command_and_the_python_of_the_readme_run(place, capsys) -> None:
    shown = commands()
    assert {words[0] for words in shown} >= {"run", "plan", "search", "status", "verify", "embed"}
    for words in shown:
        words = [place.get(word, word) for word in words]
        if words[1].endswith("quickstart.yaml"):
            words += FEW_ROWS
        assert main(words) == 0, (words, capsys.readouterr().err)
    (python,) = [block for kind, block in BLOCKS if kind == "python"]
    capsys.readouterr()
    exec(compile(python, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3
