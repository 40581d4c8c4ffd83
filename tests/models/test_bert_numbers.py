"""Details of the BERT forward pass against the reference: NUM-09, NUM-11, heads, eps, positions."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue import ACTS, BASE, CASES, EMBEDDINGS, ERF, HEADS, TANH, TEXTS
from folders import IDS, TinyBert, build, drop_json_keys, edit_json, weights_hash
from goldens import GOLDEN, largest, load_golden, tiny_json

from arch import CheckpointError
from pipeline import Embedder


@pytest.mark.parametrize("name", CASES)
def test_weights_built_here_are_those_the_golden_was_made_from(name):
    assert weights_hash(CASES[name].spec) == load_golden(name).weights_sha256


@pytest.mark.parametrize("name", CASES)
def test_token_ids_are_the_references(folder_of, open_embedder, name):
    case = CASES[name]
    got = open_embedder(folder_of(case.spec)).tokenize(list(case.texts), case.prompt)
    assert [e.input_ids.tolist() for e in got.encodings] == load_golden(name).input_ids


@pytest.mark.parametrize("name", CASES)
def test_the_reference_itself_hardly_moves_when_batched(name):
    golden = load_golden(name)
    assert largest(golden.right, golden.batched) < 5e-6


def test_every_golden_belongs_to_a_case_and_records_its_versions():
    said = tiny_json()
    assert set(said["cases"]) == set(CASES)
    assert {"torch", "transformers", "sentence-transformers"} <= set(said["versions"])
    assert sum(file.stat().st_size for file in GOLDEN.iterdir() if file.is_file()) < 3_000_000


@pytest.mark.parametrize("name", HEADS)
def test_head_sizes_from_16_to_128_match_the_reference(check_case, name):
    check_case(name)


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_num_09_embedding_sums_match_the_reference(check_case, name):
    check_case(name)


def test_num_09_type_row_zero_is_added_to_every_token(embed_spec):
    golden = load_golden("types_two")
    got = embed_spec(BASE, ["hello world"])
    row = golden.case.texts.index("hello world")
    right = largest(got, golden.right[row])
    for label in ("dropped", "second_row"):
        assert largest(got, golden.wrong[label][row]) > max(0.1, 1000 * right)


@pytest.mark.parametrize("name", ACTS)
def test_num_11_the_activation_is_read_from_the_config(check_case, name):
    check_case(name)


def test_num_11_erf_and_tanh_are_told_apart_in_float32(embed_spec):
    erf = embed_spec(ACTS["act_gelu"].spec, TEXTS)
    tanh = embed_spec(ACTS["act_gelu_new"].spec, TEXTS)
    assert 1e-4 < largest(erf, tanh) < 1e-1


@pytest.mark.parametrize("names", [ERF, TANH, ("silu", "swish")], ids=["erf", "tanh", "silu"])
def test_num_11_two_names_of_one_activation_are_bitwise_equal(embed_spec, names):
    first, *others = (embed_spec(ACTS[f"act_{name}"].spec, TEXTS) for name in names)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_num_11_an_unknown_activation_is_a_load_error(tmp_path):
    folder = build(tmp_path, TinyBert())
    edit_json(folder / "config.json", hidden_act="made_up")
    with pytest.raises(CheckpointError, match=r"config\.json: 'hidden_act' is 'made_up'"):
        Embedder.open(folder)


@pytest.mark.parametrize("key", ["hidden_act", "layer_norm_eps", "type_vocab_size"])
def test_an_absent_config_key_has_the_librarys_default(tmp_path, key):
    folder = build(tmp_path, TinyBert())
    drop_json_keys(folder / "config.json", key)
    with Embedder.open(folder, dtype="float32") as embedder:
        load_golden("types_two").check(embedder.encode(list(TEXTS)))


def test_the_tiny_vocabulary_has_no_holes():
    assert sorted(IDS.values()) == list(range(len(IDS)))
