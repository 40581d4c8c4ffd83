"""Packed weights on disk: written once, mapped after, never of another model, never half a file."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from catalogue import BASE
from families import CASES
from folders import build

import arch
from arch import CheckpointError, packed_weights
from drivers import Encoding, open_driver
from tests.conftest import NATIVE

pytestmark = pytest.mark.skipif(not NATIVE, reason="installed without a C++ compiler")

ROWS = [Encoding(np.arange(5, 5 + n, dtype=np.int32)) for n in (1, 7, 30)]


@pytest.fixture
def kept(tmp_path) -> Path:
    return tmp_path / "cache" / "packed"


@pytest.fixture
def embed(kept) -> Callable[..., np.ndarray]:
    """(folder, driver's name, dtype) -> vectors, with packed weights in `kept`."""

    def run(folder: Path, name: str = "cpu", dtype: type = np.float32) -> np.ndarray:
        driver = open_driver(name)
        return arch.load(folder, driver, dtype, packed_folder=kept).forward(driver, ROWS)

    return run


@pytest.fixture
def folder(tmp_path) -> Path:
    return build(tmp_path / "model", BASE)


@pytest.fixture
def unread(monkeypatch) -> None:
    """Linear weights may not be read from the checkpoint any more."""
    read = arch.weights.WeightReader.read

    def refuse(self, specs, *args):
        assert all(spec.role not in ("linear", "gated") for spec in specs)
        return read(self, specs, *args)

    monkeypatch.setattr(arch.weights.WeightReader, "read", refuse)


def packed_files(kept: Path) -> list[str]:
    return sorted(path.name for path in kept.glob("*.packed"))


def plain_vectors(folder: Path) -> np.ndarray:
    driver = open_driver("cpu")
    return arch.load(folder, driver, np.float32).forward(driver, ROWS)


def test_a_second_load_reads_no_linear_weight_and_gives_the_same_bits(folder, kept, embed, request):
    first = embed(folder)
    np.testing.assert_array_equal(first, plain_vectors(folder))
    assert len(packed_files(kept)) == 1
    request.getfixturevalue("unread")
    np.testing.assert_array_equal(embed(folder), first)


@pytest.mark.parametrize("name", ["modern_default", "qwen3_grouped", "nomic_plain"])
def test_gated_weights_are_kept_too(name, family_folder, embed, request):
    folder = family_folder(CASES[name].spec)
    first = embed(folder)
    request.getfixturevalue("unread")
    np.testing.assert_array_equal(embed(folder), first)


def test_what_is_mapped_lies_on_cache_lines_and_cannot_be_written(folder, kept, embed):
    embed(folder)
    (path,) = kept.glob("*.packed")
    arrays = packed_weights._read(path)
    assert len(arrays) == 4 * BASE.layers
    for values in arrays.values():
        assert values.ctypes.data % packed_weights.ALIGNMENT_BYTES == 0
        assert not values.flags.writeable


def test_other_weights_of_the_same_size_have_a_file_of_their_own(tmp_path, folder, kept, embed):
    before = embed(folder)
    other = build(tmp_path / "model", replace(BASE, seed=BASE.seed + 1))
    after = embed(other)
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_array_equal(after, plain_vectors(other))
    assert len(packed_files(kept)) == 2


def test_a_copy_of_the_folder_shares_the_file(tmp_path, folder, kept, embed):
    embed(folder)
    embed(build(tmp_path / "copy", BASE))
    assert len(packed_files(kept)) == 1


def test_each_layout_has_a_file_and_drivers_without_one_have_none(folder, kept, embed):
    want = embed(folder, "numpy")
    embed(folder, dtype=np.float16)
    embed(folder, "null")
    assert not kept.exists()
    for name in ("cpu:portable", "cpu"):
        assert np.abs(embed(folder, name) - want).max() < 1e-5
    lanes = {open_driver(name).kernels.lanes for name in ("cpu:portable", "cpu")}
    assert len(packed_files(kept)) == len(lanes)


@pytest.mark.parametrize("left_bytes", [0, 7, 16, 1000, -1])
def test_a_cut_file_is_said_and_written_again(folder, kept, embed, caplog, left_bytes):
    want = embed(folder)
    (path,) = kept.glob("*.packed")
    whole = path.read_bytes()
    path.write_bytes(whole[:left_bytes])
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(embed(folder), want)
    assert f"{path}: is not a whole file of packed weights" in caplog.text
    assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_made_costs_a_warning(folder, kept, embed, caplog):
    kept.parent.parent.mkdir(exist_ok=True)
    kept.parent.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(embed(folder), plain_vectors(folder))
    assert f"{kept}: packed weights are not kept, each process packs its own: Not a dir" in (
        caplog.text
    )


def test_a_full_disk_costs_a_warning_and_leaves_nothing(folder, kept, embed, caplog, monkeypatch):
    add, calls = packed_weights._Writer.add, []

    def fail_late(self, name, values):
        calls.append(name)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return add(self, name, values)

    monkeypatch.setattr(packed_weights._Writer, "add", fail_late)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(embed(folder), plain_vectors(folder))
    assert "each process packs its own: No space left on device" in caplog.text
    assert [path.suffix for path in kept.iterdir()] == [".sha256"]


def test_a_load_that_fails_leaves_no_file(tmp_path, kept, embed):
    folder = build(tmp_path / "model", replace(BASE, extras=(("unknown.weight", (3, 3)),)))
    with pytest.raises(CheckpointError, match=r"unknown\.weight"):
        embed(folder)
    assert [path.suffix for path in kept.iterdir()] == [".sha256"]


def test_loads_at_the_same_time_all_get_their_weights(folder, kept, embed):
    want, got = plain_vectors(folder), []
    threads = [threading.Thread(target=lambda: got.append(embed(folder))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    for vectors in got:
        np.testing.assert_array_equal(vectors, want)
    assert len(list(kept.iterdir())) == 2  # the packed file and the note of its hash
