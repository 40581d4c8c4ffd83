"""The rules of the house that a file's syntax tree can show."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "arch", "drivers")
FILES = {
    path.relative_to(ROOT).as_posix(): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
RAY_FILES = {"pipeline/job.py", "pipeline/actor.py", "pipeline/serve.py"}
BELOW = {"pipeline": set(), "arch": {"pipeline"}, "drivers": {"pipeline", "arch"}}

each_file = pytest.mark.parametrize("name", FILES)


@functools.cache
def tree(name):
    return ast.parse(FILES[name].read_text(encoding="utf-8"), name)


def imported(name):
    """Top-level names of all imports of a file, wherever in it they stand."""
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(name.partition("/")[0] if node.level else node.module.partition(".")[0])
    return found


def test_the_three_packages_are_found():
    assert {name.partition("/")[0] for name in FILES} == set(PACKAGES)


@each_file
def test_imports_flow_one_way(name):
    assert not imported(name) & BELOW[name.partition("/")[0]]


@each_file
def test_ray_is_imported_in_three_files_only(name):
    assert "ray" not in imported(name) or name in RAY_FILES


@each_file
def test_cupy_is_imported_in_the_cuda_driver_only(name):
    assert "cupy" not in imported(name) or name.startswith("drivers/cuda/")


@each_file
def test_nothing_is_unpickled_evaluated_or_left_to_torch(name):
    assert not imported(name) & {"pickle", "cloudpickle", "dill", "marshal", "torch"}
    calls = [node.func for node in ast.walk(tree(name)) if isinstance(node, ast.Call)]
    assert not {f.id for f in calls if isinstance(f, ast.Name)} & {"eval", "exec", "__import__"}


@each_file
def test_files_stay_short(name):
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= 500


@each_file
def test_modules_and_their_public_functions_and_classes_have_docstrings(name):
    module = tree(name)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [n for n in module.body if isinstance(n, kinds) and not n.name.startswith("_")]
    assert [n.name for n in public if not ast.get_docstring(n)] == []
    assert ast.get_docstring(module)


@each_file
def test_no_bare_except_and_no_assert_for_user_input(name):
    nodes = list(ast.walk(tree(name)))
    assert not [n.lineno for n in nodes if isinstance(n, ast.Assert)]
    assert not [n.lineno for n in nodes if isinstance(n, ast.ExceptHandler) and n.type is None]


def test_installed_version_is_the_projects():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r'^version = "([^"]+)"$', text, re.MULTILINE).group(1)
    installed = {found.version for found in importlib.metadata.distributions(name="rayvec")}
    assert installed <= {declared}
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab]|rc)?\d*", declared)


def test_importing_the_pipeline_brings_neither_ray_nor_torch():
    program = (
        "import sys, pipeline, pipeline.cli;"
        "print(sorted({'ray', 'torch', 'cupy', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_forward_layer_is_under_25_lines():
    layers = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1
        for name in FILES
        if name.startswith("arch/")
        for node in tree(name).body
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_layer")
    }
    assert len(layers) >= 4
    assert {name: lines for name, lines in layers.items() if lines >= 25} == {}
