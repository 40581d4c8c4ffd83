"""Wheels of the project: with the native module, and without it where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def build_wheel(tmp_path):
    """Runs pip on the project; without a compiler, PATH is an empty folder."""

    def build(*, compiler, **variables):
        dropped = ("CXX", "CC", "CXXFLAGS", "RAYVEC_REQUIRE_NATIVE")
        env = {name: value for name, value in os.environ.items() if name not in dropped}
        if not compiler:
            env["PATH"] = str(tmp_path / "empty")
        command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", tmp_path, ROOT]
        done = subprocess.run(
            command, env=env | variables, capture_output=True, text=True, timeout=300
        )
        return done, list(tmp_path.glob("*.whl"))

    return build


def names_in(wheel):
    """(packages' files, native module's files) of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    native = {name.partition(".")[0] for name in names if name.startswith("rayvec_native.")}
    return [name for name in names if name.startswith(("arch/", "drivers/", "pipeline/"))], native


def test_without_a_compiler_the_wheel_has_everything_but_the_native_module(build_wheel):
    done, (wheel,) = build_wheel(compiler=False)
    assert "rayvec is installed without rayvec_native: no C++ compiler" in done.stdout + done.stderr
    files, native = names_in(wheel)
    assert native == set()
    wanted = [p for package in ("arch", "drivers", "pipeline") for p in (ROOT / package).rglob("*")]
    wanted = [p.relative_to(ROOT).as_posix() for p in wanted if p.suffix in (".py", ".cu", ".cuh")]
    assert sorted(wanted) == sorted(files)


def test_without_a_compiler_a_module_that_must_be_there_is_an_error(build_wheel):
    done, wheels = build_wheel(compiler=False, RAYVEC_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "rayvec_native cannot be built (RAYVEC_REQUIRE_NATIVE=1): no C++" in (
        done.stdout + done.stderr
    )
    assert wheels == []


@pytest.mark.parametrize("broken", ["CXXFLAGS=-include nothing.hpp", "CXX=/nowhere/g++"])
def test_a_compiler_that_does_not_work_is_an_error(build_wheel, broken):
    name, _, value = broken.partition("=")
    done, wheels = build_wheel(compiler=True, **{name: value})
    assert done.returncode != 0
    assert wheels == []
