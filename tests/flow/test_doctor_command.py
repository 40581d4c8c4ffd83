"""`rayvec doctor`: versions, the driver and why, and what a model folder says."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from drivers import choose_driver
from pipeline.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def doctor(capsys):
    """A function: arguments -> (exit code, {name: value}, standard error)."""

    def run(*args):
        code = main(["doctor", *map(str, args)])
        out, err = capsys.readouterr()
        lines = [line for line in out.splitlines() if line]
        return code, {line[:16].strip(): line[17:] for line in lines}, err

    return run


@pytest.fixture
def copied(minilm, tmp_path):
    """A folder like MiniLM's that a test may change."""
    for file in minilm.iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def test_machine_lines_have_the_installed_versions(doctor):
    code, lines, err = doctor()
    assert (code, err) == (0, "")
    assert lines["python"].startswith(platform.python_version())
    for package in ("numpy", "tokenizers", "safetensors", "pyarrow", "ray", "obstore"):
        assert lines[package] == importlib.metadata.version(package)
    assert f"{os.cpu_count()} logical cores" in lines["processor"]
    assert "blas" in lines
    assert "family" not in lines


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        ("auto", f"{choose_driver()[0]}: "),
        ("numpy", "numpy: asked for by name"),
        ("null", "null: asked for by"),
    ],
)
def test_driver_line_says_which_and_why(doctor, asked, want):
    _, lines, _ = doctor("--driver", asked)
    assert lines["driver"].startswith(want)
    assert len(lines["driver"]) > len("numpy: ")


@pytest.mark.parametrize("driver", ["gpu:0", "nonsense", ""])
def test_driver_that_is_not_there_is_refused_with_what_is(doctor, driver):
    code, _, err = doctor("--driver", driver)
    assert code == 2
    assert err == f"rayvec: open_driver: no driver '{driver}' in this build, have auto, " + (
        "cuda, cpu, numpy, null\n"
    )


def test_cuda_line_says_what_is_missing_and_how_to_install_it(doctor, monkeypatch):
    monkeypatch.setattr("drivers.cuda.opening.find_spec", lambda name: None)
    _, lines, _ = doctor("--driver", "numpy")
    assert lines["cuda"] == (
        "cuda:0: CuPy is not installed; install it with pip install 'rayvec[cuda12]', or "
        "'rayvec[cuda13]' for CUDA 13"
    )
    code, _, err = doctor("--driver", "cuda:0")
    assert (code, err) == (2, f"rayvec: {lines['cuda']}\n")


def test_model_lines_of_minilm(doctor, minilm):
    code, lines, err = doctor("--model", minilm)
    assert (code, err) == (0, "")
    assert lines["folder"] == str(minilm)
    assert lines["family"] == "bert (ClassicBert)"
    assert lines["vector"] == "384 values, norm 1"
    assert lines["pooling"] == "mean"
    assert lines["modules after"] == "Normalize"
    assert (lines["prompts"], lines["default prompt"]) == ("none", "none")
    assert lines["length limit"] == "256 tokens (folder declares 256, 512 position rows)"
    assert lines["tokenizer"] == (
        "tokenizer.json for 30522 token rows; "
        "baked-in limits undone: truncation at 128, padding to 128"
    )
    assert "by default" not in lines


def test_limit_asked_for_is_shown_beside_the_declared_one(doctor, minilm):
    _, lines, _ = doctor("--model", minilm, "--max-seq-len", 512)
    assert lines["length limit"] == "512 tokens (folder declares 256, 512 position rows)"


def test_limit_beyond_the_position_rows_is_refused(doctor, minilm):
    code, _, err = doctor("--model", minilm, "--max-seq-len", 513)
    assert code == 2
    assert "max_seq_len is 513, wanted 1 to 512, the model's position rows" in err


def test_plain_folder_says_what_is_decided_by_default(doctor, copied):
    for name in ("modules.json", "sentence_bert_config.json", "tokenizer_config.json"):
        (copied / name).unlink()
    code, lines, _ = doctor("--model", copied)
    assert code == 0
    assert lines["vector"] == "384 values, not normalised"
    assert lines["modules after"] == "none"
    assert lines["length limit"] == "512 tokens (folder declares nothing, 512 position rows)"
    assert "by default" in lines


def test_prompts_are_shown_literally(doctor, copied):
    config = copied / "config_sentence_transformers.json"
    config.unlink()
    prompts = {"query": "q: ", "passage": ""}
    config.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "query"}))
    _, lines, _ = doctor("--model", copied)
    assert lines["prompts"] == "query='q: ', passage=''"
    assert lines["default prompt"] == "query"


@pytest.mark.parametrize(
    "missing", ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling"]
)
def test_folder_without_a_file_it_needs_is_refused_by_its_name(doctor, copied, missing):
    (copied / missing).unlink()
    code, lines, err = doctor("--model", copied)
    assert code == 2
    assert missing in err
    assert err.startswith("rayvec: ")
    assert err.count("\n") == 1
    assert "driver" in lines


@pytest.mark.parametrize("model", ["/nowhere/at/all", "package:no_such_package_here/x", "a/b/c"])
def test_model_that_is_nowhere_is_refused_by_name(doctor, model):
    code, _, err = doctor("--model", model)
    assert code == 2
    assert f"model '{model}'" in err


def test_reader_that_left_gets_no_traceback():
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from pipeline.cli import entry; entry()", "doctor"],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=env | {"PYTHONPATH": str(ROOT)},
            timeout=60,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1
