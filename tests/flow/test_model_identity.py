"""Hashes of a model folder: every byte that a model is read from, and nothing else."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest
from run_builder import run_whole, small_shards, stand_in_for_ray

from arch.checkpoint import read_checkpoint
from pipeline import Embedder
from pipeline.model_identity import identify
from pipeline.run import prepare
from tests.models.folders import DenseSpec, TinyBert, build

FULL = TinyBert(
    dense=(DenseSpec(32, 24),),
    normalize=True,
    prompts={"query": "find "},
    max_seq_length=32,
)
LAYOUTS = {
    "plain": TinyBert(modules=None),
    "root": FULL,
    "shards": replace(FULL, shards=2),
    "below": replace(FULL, transformer_folder="0_Transformer"),
    "shards below": replace(FULL, transformer_folder="0_Transformer", shards=2),
    "deep below": replace(FULL, transformer_folder="parts/transformer"),
}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")

each_layout = pytest.mark.parametrize("spec", LAYOUTS.values(), ids=LAYOUTS)


def identity_of(folder):
    return identify(read_checkpoint(folder))


def names_in(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


@each_layout
def test_every_file_of_a_folder_counts_as_model_or_as_tokenizer(tmp_path, spec):
    """A space at the end changes no meaning, so the folder can still be read."""
    folder = build(tmp_path / "model", spec)
    before = identity_of(folder)
    for name in names_in(folder):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole + b" ")
        after = identity_of(folder)
        changed = (
            after.model_sha256 != before.model_sha256,
            after.tokenizer_sha256 != before.tokenizer_sha256,
        )
        is_tokenizer = name.name in TOKENIZER
        assert changed == (not is_tokenizer, is_tokenizer), name
        (folder / name).write_bytes(whole)
    assert identity_of(folder) == before


@each_layout
def test_one_bit_of_the_weights_counts(tmp_path, spec):
    folder = build(tmp_path / "model", spec)
    before = identity_of(folder)
    for path in folder.rglob("*.safetensors"):
        data = bytearray(path.read_bytes())
        for at in (len(data) // 2, -1):
            data[at] ^= 1
            path.write_bytes(data)
            assert identity_of(folder).model_sha256 != before.model_sha256, path
            data[at] ^= 1
        path.write_bytes(data)
    assert identity_of(folder) == before


@each_layout
def test_the_place_the_time_and_a_link_to_a_folder_do_not_count(tmp_path, spec):
    folder = build(tmp_path / "model", spec)
    before = identity_of(folder)
    for name in names_in(folder):
        os.utime(folder / name, (1, 1))
    assert identity_of(folder) == before
    moved = tmp_path / "some where [else]"
    shutil.copytree(folder, moved)
    assert identity_of(moved) == before
    (tmp_path / "link").symlink_to(moved)
    assert identity_of(tmp_path / "link") == before


def test_files_that_are_links_count_as_what_they_link_to(tmp_path):
    folder = build(tmp_path / "model", FULL)
    for name in names_in(folder):
        (tmp_path / "linked" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "linked" / name).symlink_to(folder / name)
    assert identity_of(tmp_path / "linked") == identity_of(folder)


def test_files_that_no_model_is_read_from_do_not_count(tmp_path):
    folder = build(tmp_path / "model", FULL)
    before = identity_of(folder)
    for name in (
        "README.md",
        "pytorch_model.bin",
        "vocab.txt",
        ".gitattributes",
        "onnx/model.onnx",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("other")
    assert identity_of(folder) == before


def test_swapped_files_count(tmp_path):
    folder = build(tmp_path / "model", replace(FULL, shards=2))
    before = identity_of(folder)
    one, two = sorted(folder.glob("*.safetensors"))
    one.rename(folder / "aside")
    two.rename(one)
    (folder / "aside").rename(two)
    assert identity_of(folder).model_sha256 != before.model_sha256


def test_the_folders_own_length_limit_counts_wherever_it_stands(tmp_path):
    for layout in ("root", "below", "deep below"):
        spec = LAYOUTS[layout]
        one = build(tmp_path / layout / "32", spec)
        other = build(tmp_path / layout / "16", replace(spec, max_seq_length=16))
        limits = []
        for folder in (one, other):
            with Embedder.open(folder, driver="null") as embedder:
                limits.append(embedder.max_seq_len)
        assert limits == [32, 16]
        assert identity_of(one).model_sha256 != identity_of(other).model_sha256, layout


# ---- in a run


@pytest.fixture
def embedded(monkeypatch):
    return stand_in_for_ray(monkeypatch)


def test_another_byte_of_weights_keeps_nothing(tmp_path, embedded):
    config = small_shards(tmp_path)
    run_whole(config)
    weights = tmp_path / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert len(prepare(config).todo) == 5


def test_a_model_at_another_place_keeps_everything(tmp_path, embedded):
    run_whole(small_shards(tmp_path))
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    moved = small_shards(tmp_path, None, model={"path": f"{tmp_path}/elsewhere"})
    assert prepare(moved).unchanged
