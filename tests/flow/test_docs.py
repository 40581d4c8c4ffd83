"""What the documents say can be done: command lines parse, targets and links are there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from arch import ARCHS
from arch.checkpoint import POOL_MODES
from drivers.cuda.launch import KERNELS, build_of
from drivers.dtypes import FLOAT16
from pipeline import cli
from pipeline.config import schema_markdown

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
FENCED = re.compile(r"^( *)(```+|~~~+)[^\n]*\n(.*?)^\1\2", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s[^)]*)?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>"}


@pytest.fixture
def models_page():
    """The script that writes docs/MODELS.md."""
    path = ROOT / "docs" / "models_page.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose_of(name):
    return FENCED.sub("", DOCUMENTS[name].read_text(encoding="utf-8"))


def command_lines(program):
    """(document, words) of each fenced command that begins with `program`."""
    found = []
    for name, path in DOCUMENTS.items():
        for block in FENCED.finditer(path.read_text(encoding="utf-8")):
            for line in block[3].replace("\\\n", " ").splitlines():
                for words in commands_of(line.strip().removeprefix("$ "), program):
                    found.append(pytest.param(words, id=f"{name}: {shlex.join(words)}"))
    return found


def commands_of(line, program):
    """The words of each command of a shell line, where the line begins with `program`."""
    if not line.startswith(f"{program} "):
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands, words = [], iter(lexer)
    current = []
    for word in words:
        if word in ("<", ">", ">>"):
            next(words)
        elif word in SHELL:
            commands.append(current)
            current = []
        else:
            current.append(word)
    return [words for words in (*commands, current) if words[:1] == [program]]


def make_targets():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([A-Za-z][\w-]*):(?!=)", text, re.MULTILINE))


def anchor_of(heading):
    """The anchor that a heading has on a page."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_words_of_a_shell_line():
    line = "rayvec embed --model 'a b' < in.txt > out.npy && rayvec files out | head  # shown"
    assert commands_of(line, "rayvec") == [
        ["rayvec", "embed", "--model", "a b"],
        ["rayvec", "files", "out"],
    ]
    assert commands_of("rayvecs run", "rayvec") == []


def test_the_readme_shows_commands_to_run_and_to_test():
    assert len(command_lines("rayvec")) >= 2
    assert {words.values[0][1] for words in command_lines("make")} >= {"quickstart", "test"}


@pytest.mark.parametrize("words", command_lines("rayvec"))
def test_commands_parse(words):
    assert callable(cli._parser().parse_args(words[1:]).command)


@pytest.mark.parametrize("words", command_lines("rayvec"))
def test_configs_that_commands_name_are_there(words):
    named = [word for word in words if re.fullmatch(r"configs/.+\.ya?ml", word)]
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("words", command_lines("make"))
def test_targets_are_in_the_makefile(words):
    wanted = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    assert wanted
    assert set(wanted) <= make_targets()


def test_every_target_that_help_shows_is_there():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = set(re.findall(r'@echo "make ([\w-]+)', text))
    assert shown
    assert shown <= make_targets()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    broken = []
    for target in LINK.findall(prose_of(name)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = DOCUMENTS[name].parent / file if file else DOCUMENTS[name]
        there = path.exists()
        if there and anchor and path.suffix == ".md":
            headings = HEADING.findall(FENCED.sub("", path.read_text(encoding="utf-8")))
            there = anchor in map(anchor_of, headings)
        if not there:
            broken.append(target)
    assert broken == []


def test_the_configuration_page_is_the_schema():
    page = (ROOT / "docs" / "CONFIG.md").read_text(encoding="utf-8")
    assert page == "# Configuration\n\n" + schema_markdown()


def test_the_models_page_is_the_registry_and_the_table(models_page):
    page = (ROOT / "docs" / "MODELS.md").read_text(encoding="utf-8")
    assert page == models_page.models_markdown()


def test_a_family_gained_or_lost_changes_the_models_page(models_page, monkeypatch):
    page = models_page.models_markdown()
    lost = {name: family for name, family in ARCHS.items() if name != "mpnet"}
    monkeypatch.setattr(models_page, "ARCHS", lost)
    without = models_page.models_markdown()
    assert "all-mpnet-base-v2" in page.partition("## Refused")[0]
    assert "all-mpnet-base-v2" in without.partition("## Refused")[2]
    monkeypatch.setattr(models_page, "ARCHS", {**ARCHS, "t5": ARCHS["bert"]})
    assert "sentence-t5-base" in models_page.models_markdown().partition("## Refused")[0]


def test_the_kernels_page_has_every_cuda_kernel_by_theme():
    """`make docs` writes it; its figures take a compiler, its rows do not."""
    text = (ROOT / "docs" / "CUDA_KERNELS.md").read_text(encoding="utf-8")
    themes = sorted(path.stem for path in KERNELS.glob("*.cu") if path.stem != "prelude")
    found = re.split(r"^## (\w+)$", text, flags=re.MULTILINE)[1:]
    assert found[::2] == themes
    for theme, table in zip(found[::2], found[1::2]):
        rows = re.findall(r"^\| `(\w+)` \| \d+ \| \d+ \| \d+ \| 0 \|$", table, re.MULTILINE)
        assert sorted(rows) == sorted(build_of(theme, FLOAT16).kernels)


def test_rows_of_the_models_table_are_whole(models_page):
    rows = models_page.read_rows()
    assert len({row["checkpoint"] for row in rows}) == len(rows)
    for row in rows:
        assert None not in row
        assert None not in row.values()
        assert row["normalized"] in ("yes", "no", "")
        assert row["pooling"] in (*POOL_MODES, "")
        for score in (row["stsb"], row["scifact"]):
            assert re.fullmatch(r"(0\.\d{5})?", score)


def test_the_figures_are_those_of_the_result_files(monkeypatch):
    """`python benchmarks/report.py` would change neither the page nor the README."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    report = importlib.import_module("report")
    records = report.newest_records()
    assert records
    texts = {path: path.read_text(encoding="utf-8") for path in (report.PAGE, report.README)}
    assert texts[report.PAGE] == report.page(records)
    assert texts[report.README] == report.with_table(texts[report.README], records)
