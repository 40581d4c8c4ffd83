"""Folders that cannot be served exactly are refused before any text is read or vector written.

Each entry of the table damages a good folder, and names what the one-line message must say: the
file, the tensor or key, and what was wanted. The same table runs through library and command.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_folders import BAD, DENSE_SPEC
from damages import WEIGHTS, Bad, nothing
from folders import DenseSpec, TinyBert, build

from arch import CheckpointError
from pipeline import Embedder
from pipeline.cli import main
from pipeline.errors import UsageError


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_by_file_key_and_what_was_wanted(folder_of, tmp_path, name):
    folder = _damaged(folder_of, tmp_path, BAD[name])
    with pytest.raises((CheckpointError, UsageError)) as caught:
        Embedder.open(folder, driver="numpy", **BAD[name].options)
    message = str(caught.value)
    missing = [part for part in BAD[name].says if part not in message]
    assert not missing, message


@pytest.mark.parametrize("name", BAD)
def test_the_command_refuses_a_bad_folder_in_one_line_before_any_output(
    folder_of, tmp_path, capfd, name
):
    folder = _damaged(folder_of, tmp_path, BAD[name])
    (tmp_path / "texts").write_text("one\ntwo\n", encoding="utf-8")
    out = tmp_path / "out" / "vectors.npy"
    _expect_refusal(capfd, _command(folder, tmp_path / "texts", out, BAD[name].options), BAD[name])
    assert not out.parent.exists()


def test_the_command_leaves_an_older_output_alone(folder_of, tmp_path, capfd):
    bad = BAD["weights cut short"]
    folder = _damaged(folder_of, tmp_path, bad)
    (tmp_path / "texts").write_text("one\n", encoding="utf-8")
    out = tmp_path / "vectors.npy"
    out.write_bytes(b"older")
    _expect_refusal(capfd, _command(folder, tmp_path / "texts", out, {}), bad)
    assert out.read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "texts", "vectors.npy"]


@pytest.mark.parametrize("kind", ["absent", "a file"])
def test_a_path_that_is_no_folder_is_refused(tmp_path, capfd, kind):
    path = tmp_path / "model"
    if kind == "a file":
        path.write_bytes(b"")
    says = (str(path), "a file, not a folder" if kind == "a file" else "is no folder", "wanted")
    with pytest.raises(UsageError) as caught:
        Embedder.open(path)
    assert all(part in str(caught.value) for part in says)
    bad = Bad(nothing, says)
    _expect_refusal(capfd, ["embed", "--model", str(path)], bad)


@pytest.mark.parametrize("mode", [0o000, 0o600], ids=["closed", "not searchable"])
def test_a_folder_that_may_not_be_read_is_refused(folder_of, public_path, capfd, mode):
    folder = _damaged(folder_of, public_path, Bad(nothing, ()))
    folder.chmod(mode)
    try:
        with _without_privileges():
            with pytest.raises((CheckpointError, UsageError), match=str(folder)):
                Embedder.open(folder, driver="numpy")
            command = ["embed", "--model", str(folder)]
            _expect_refusal(capfd, command, Bad(nothing, (str(folder),)))
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json", "modules.json"])
def test_a_file_that_may_not_be_read_is_refused(folder_of, public_path, name):
    folder = _damaged(folder_of, public_path, Bad(nothing, ()))
    (folder / name).chmod(0o000)
    with _without_privileges(), pytest.raises(CheckpointError, match=name):
        Embedder.open(folder, driver="numpy")


@pytest.mark.parametrize("place", ["pytorch_model.bin", "2_Dense/pytorch_model.bin"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside safetensors"])
def test_a_pickle_is_never_opened(folder_of, tmp_path, place, beside):
    folder = _damaged(folder_of, tmp_path, Bad(nothing, (), DENSE_SPEC))
    marker = tmp_path / "opened"
    (folder / place).write_bytes(pickle.dumps(_Writes(marker)))
    if beside:
        with Embedder.open(folder, driver="numpy") as embedder:
            assert embedder.encode(["one"]).shape == (1, 16)
    else:
        (folder / place).with_name(WEIGHTS).unlink()
        with pytest.raises(CheckpointError, match="never opened"):
            Embedder.open(folder, driver="numpy")
    assert not marker.exists()
    pickle.loads((folder / place).read_bytes())
    assert marker.exists()  # the trap works


@pytest.mark.parametrize("name", ["model_type unknown", "tensor missing", "tokenizer missing"])
def test_the_shape_only_driver_refuses_the_same_folders(folder_of, tmp_path, name):
    folder = _damaged(folder_of, tmp_path, BAD[name])
    with pytest.raises(CheckpointError) as caught:
        Embedder.open(folder, driver="null")
    assert all(part in str(caught.value) for part in BAD[name].says)


class _Writes:
    """Pickles to a call that creates a file when loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def _damaged(folder_of: Callable[[TinyBert], Path], tmp_path: Path, bad: Bad) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(folder_of(bad.spec), folder)
    folder.chmod(0o755)
    bad.damage(folder)
    return folder


def _command(folder: Path, texts: Path, out: Path, options: Mapping[str, Any]) -> list[str]:
    command = ["embed", "--model", str(folder), "--driver", "numpy", "--threads", "1"]
    command += ["--input", str(texts), "--output", str(out)]
    for key, value in options.items():
        command += [f"--{key.replace('_', '-')}", str(value)]
    return command


def _expect_refusal(capfd: pytest.CaptureFixture[str], command: list[str], bad: Bad) -> None:
    """Exit code 2, one line on standard error with the parts, nothing on standard output."""
    capfd.readouterr()
    code = main(command)
    out, err = capfd.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("rayvec: ")
    assert all(part in err for part in bad.says), err


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A temporary folder that any user can reach; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def _without_privileges() -> Iterator[None]:
    """Run as an ordinary user, so that file modes count, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_table_starts_from_folders_that_load(tmp_path):
    specs = {repr(bad.spec): bad.spec for bad in BAD.values()}
    loadable = [
        spec
        for spec in specs.values()
        if not spec.extras and spec.max_seq_length != 2 and DenseSpec(24, 8) not in spec.dense
    ]
    assert len(loadable) >= 6
    for number, spec in enumerate(loadable):
        folder = build(tmp_path / str(number), spec)
        with Embedder.open(folder, driver="numpy") as embedder:
            assert np.isfinite(embedder.encode(["one"])).all()
