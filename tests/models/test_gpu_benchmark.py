"""benchmarks/gpu.py from end to end on the stand-ins for CUDA's libraries, with a tiny model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from folders import TinyBert

from tests.cuda_fibers.cuda_driver import FakeDevice
from tests.cuda_fibers.fake_cupy import FakeCupy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEXTS = ("a", "river and sea", "the far side of the moon", "x y z")
TESTS = "cuda:0 and (test_rms_norm or (test_float16_storage_stays and nomic))"
IN_STAND_INS = ("-p", "tests.cuda_fibers.stand_in", "-k", TESTS)


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("gpu")


@pytest.fixture
def tiny(benchmark, folder_of):
    """Sizes that divide nothing, and a model of two layers."""
    sizes = importlib.import_module("gpu_sizes")
    return sizes.Sizes(
        copies=(1026,),
        products=((33, 40, 17), (7, 40, 48)),
        tokens=19,
        layers=(
            *sizes.bert_layers("Tiny", 8, 24),
            *sizes.modern_layers("Modern", 8, 12),
        ),
        lengths=(3, 7),
        head_dims=(4, 8),
        heads=16,
        window=2,
        row_tokens=21,
        widths=(24,),
        vocab=30,
        models=(str(folder_of(TinyBert())),),
        sequences=3,
        length=9,
        ids=(5, 20),
        checked_texts=2,
        seconds=1e-4,
    )


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    return path


def ran(benchmark, tmp_path, *words, **options):
    """Exit status, and what the one result file holds."""
    results = tmp_path / "results"
    words = ["--rounds", "2", "--results", str(results), *map(str, words)]
    status = benchmark.main(words, lambda name: FakeDevice(FakeCupy()), **options)
    (file,) = results.glob("gpu-2*.json")
    return status, json.loads(file.read_text(encoding="utf-8")) | {"file": file.name}


def test_a_whole_run(benchmark, tmp_path, tiny, texts, capsys):
    words = ("--texts", texts, "--minutes", 60)  # of a slow machine
    status, record = ran(benchmark, tmp_path, *words, sizes=tiny, test_options=IN_STAND_INS)
    figures, settings = record["figures"], record["settings"]
    assert figures["failed"] == {}
    assert status == 0
    assert figures["skipped"] == []
    assert settings["card"]["name"] == "Fibers"
    assert settings["card"]["cupy"] == "14.2.0"
    assert settings["num_texts"] == len(TEXTS)
    assert settings["arena_bytes"] > 0

    assert figures["kernels"] > 0
    assert {row["operation"] for row in figures["ceilings"]["tried"]} == {"copy", "product"}
    assert all(best > 0 for best in figures["ceilings"]["best"].values())
    for name in ("goldens", "contract"):
        assert figures[name]["passed"] > 0
        assert figures[name]["failed"] == []
        assert not figures[name]["stopped"]

    assert len(figures["layers"]) == 10
    assert len(figures["attention"]) == 5
    assert [row["operation"] for row in figures["rows"]] == ["add_norm"] * 3 + ["embed"]
    for name in ("layers", "attention", "rows"):
        for row in figures[name]:
            assert row["rate"] > 0
            assert row["share"] > 0
            assert len(row["milliseconds"]) == 2

    (found,) = [each for each in figures.values() if isinstance(each, dict) and "model" in each]
    assert found["left_out"].keys() == {"transformers float16"}
    assert found["systems"]["uniform"]["tokens"] == 27
    for raced in found["systems"].values():
        row = raced["by_system"]["rayvec float16"]
        assert raced["flops_per_token"] > 0
        assert row["tokens_per_second"] > 0
        assert row["share"] > 0
        assert len(row["seconds"]) == 2
    exact = found["exactness"]
    assert exact["rayvec float16"]["cosine_min"] > 0.9999
    assert exact["rayvec float32"]["largest_difference"] < 1e-5
    batch = found["kernels"]
    assert batch["tokens"] == 27
    assert batch["batch_milliseconds"] > 0
    kernels = {row["kernel"]: row for row in batch["by_kernel"]}
    assert any(name.startswith("product, ") for name in kernels)
    assert any(name.startswith("norm_") for name in kernels)
    assert sum(row["share"] for row in kernels.values()) == pytest.approx(1)
    assert sum(row["milliseconds"] for row in kernels.values()) == batch["kernels_milliseconds"]
    assert len(found["batch_tokens"]) == 4
    assert "transformers float16 is left out: not installed: torch" in capsys.readouterr().out

    section = importlib.import_module("gpu_section")
    page = "\n".join(section.gpu(record))
    assert page.startswith("## The CUDA driver on a card: Fibers\n")
    assert "transformers float16 was left out (not installed: torch, transformers)." in page
    assert "none failed." in page


def test_without_time_stages_are_skipped_by_name(benchmark, tmp_path, tiny, texts):
    status, record = ran(benchmark, tmp_path, "--texts", texts, "--minutes", "0.01", sizes=tiny)
    model = Path(tiny.models[0]).name
    skipped = ["goldens", "contract", model, "layers", "attention", "rows"]
    assert record["figures"]["skipped"] == skipped
    assert "ceilings" in record["figures"]
    assert status == 0


def test_a_stage_that_fails_is_recorded_and_the_next_follows(
    benchmark, tmp_path, tiny, texts, monkeypatch
):
    def broken(*_):
        raise ValueError("told to fail")

    monkeypatch.setattr(benchmark, "run_tests", broken)
    monkeypatch.setattr(benchmark, "measure_model", broken)
    words = ("--texts", texts, "--minutes", 60)
    status, record = ran(benchmark, tmp_path, *words, sizes=tiny)
    assert status == 1
    failed = record["figures"]["failed"]
    assert failed.keys() == {"goldens", "contract", Path(tiny.models[0]).name}
    assert set(failed.values()) == {"ValueError: told to fail"}
    assert len(record["figures"]["rows"]) == 4


def test_a_refused_operation_is_a_figure_too(benchmark, tmp_path, tiny, texts, monkeypatch):
    sizes = importlib.import_module("gpu_sizes")
    wrong = sizes.Layer("Tiny", "of no such activation", 8, 24, act="no such")
    tiny = tiny.__class__(**{**tiny.__dict__, "layers": (wrong, *tiny.layers[:1]), "models": ()})
    monkeypatch.setattr(benchmark, "TESTS", {})
    words = ("--texts", texts, "--minutes", 60)
    _, record = ran(benchmark, tmp_path, *words, sizes=tiny)
    refused, done = record["figures"]["layers"]
    assert "no such" in refused["refused"]
    assert done["rate"] > 0


@pytest.mark.parametrize("limits", [(None, None), (0, 0), (2, 3), (None, 0), (4, None)])
def test_useful_operations_of_attention_are_those_of_the_pairs_that_are_seen(benchmark, limits):
    left, right = limits
    lengths = (1, 7, 3, 7)
    seen = sum(
        (left is None or query - key <= left) and (right is None or key - query <= right)
        for length in lengths
        for query in range(length)
        for key in range(length)
    )
    attended_pairs = importlib.import_module("gpu_driver").attended_pairs
    assert attended_pairs(lengths, left, right) == seen


SOME_TESTS = """
import time, pytest
@pytest.fixture
def broken():
    raise RuntimeError("told to fail")
def test_passes(): pass
def test_fails(): assert 1 == 2, "so it is said"
def test_errs(broken): pass
@pytest.mark.skip
def test_is_skipped(): pass
def test_takes_too_long(): time.sleep({seconds})
def test_is_not_reached(): pass
"""


@pytest.mark.parametrize("seconds", [0, 600])
def test_each_test_that_did_not_pass_is_named_and_too_slow_ones_are_stopped(
    benchmark, tmp_path, seconds
):
    path = tmp_path / "test_some.py"
    path.write_text(SOME_TESTS.format(seconds=seconds), encoding="utf-8")
    options = ("-k", "test_", "-p", "no:cacheprovider")
    limit = 60 if seconds == 0 else 10
    found = benchmark.run_tests("cuda:0", [str(path)], limit, tmp_path, options)
    assert found["stopped"] == (seconds > 0)
    assert found["passed"] == (3 if seconds == 0 else 1)
    assert found["skipped"] == 1
    names = [failure["test"].rpartition("::")[2] for failure in found["failed"]]
    assert names == ["test_fails", "test_errs"]
    assert "so it is said" in found["failed"][0]["said"]


def test_a_command_that_runs_nothing_says_what_pytest_said(benchmark, tmp_path):
    with pytest.raises(RuntimeError, match=r"pytest ended with 4: (.|\n)*no-such-option"):
        benchmark.run_tests("cuda:0", [str(tmp_path)], 60, tmp_path, ["--no-such-option"])


def test_without_a_card_it_ends_in_one_line(benchmark):
    with pytest.raises(SystemExit) as ended:
        benchmark.main([])
    assert str(ended.value).startswith("cuda:0: ")
    assert len(str(ended.value).splitlines()) == 1
