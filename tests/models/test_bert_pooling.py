"""Pooling, Dense and Normalize come from the folder: NUM-01, NUM-03 and NUM-04."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from catalogue import BASE, DENSE, NORMALIZE, POOLING, TEXTS
from folders import TinyBert, build, dense_weights, edit_json, write_json
from goldens import largest, load_golden

from arch import CheckpointError
from pipeline import Embedder

NUM_01_TEXTS = ["short", "a somewhat longer sentence about rivers", ""]


@pytest.mark.parametrize("name", POOLING)
def test_num_01_pooling_is_read_from_the_folder(check_case, name):
    check_case(name)


def test_num_01_cls_and_mean_folders_of_the_same_weights_differ(embed_spec):
    cls = embed_spec(replace(BASE, pooling=("cls",)), NUM_01_TEXTS)
    mean = embed_spec(replace(BASE, pooling=("mean",)), NUM_01_TEXTS)
    assert np.abs(cls - mean).max(axis=1).min() > 0.1


def test_num_01_pooling_by_default_is_mean_and_logged(folder_of, caplog):
    folder = folder_of(TinyBert(modules=None))
    with (
        caplog.at_level(logging.INFO, logger="pipeline"),
        Embedder.open(folder, dtype="float32") as embedder,
    ):
        got = embedder.encode(NUM_01_TEXTS)
    assert "no modules.json: mean pooling" in caplog.text
    golden = load_golden("pool_mean_old")
    rows = [golden.case.texts.index(text) for text in NUM_01_TEXTS]
    assert largest(got, golden.right[rows]) < 1e-5


@pytest.mark.parametrize("mode", ["cls", "mean", "max", "weightedmean", "lasttoken"])
def test_num_01_pooling_can_be_overruled_by_name(embed_spec, mode):
    other = "mean" if mode == "cls" else "cls"
    got = embed_spec(replace(BASE, pooling=(other,)), TEXTS, pooling=mode)
    load_golden(f"pool_{mode}_old").check(got)


@pytest.mark.parametrize("name", DENSE)
def test_num_03_dense_modules_are_run(check_case, name):
    check_case(name)


@pytest.mark.parametrize("name", ["dense_tanh", "dense_identity", "dense_no_bias", "dense_two"])
def test_num_03_dense_changes_the_width_and_keeps_unit_norm(embed_spec, name):
    got = embed_spec(DENSE[name].spec, TEXTS)
    assert got.shape == (len(TEXTS), 16)
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-6


def test_num_03_dense_is_tanh_of_the_stored_projection(embed_spec):
    spec = DENSE["dense_tanh"].spec
    pooled = embed_spec(replace(spec, dense=(), normalize=False), TEXTS).astype(np.float64)
    stored = dense_weights(spec, 0)
    want = np.tanh(pooled @ stored["linear.weight"].T.astype(np.float64) + stored["linear.bias"])
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    assert largest(embed_spec(spec, TEXTS), want) < 1e-6


@pytest.mark.parametrize("kind", ["LayerNorm", "WeightedLayerPooling", "Router", "Dropout"])
def test_num_03_a_module_that_is_not_implemented_stops_loading_by_name(tmp_path, kind):
    folder = build(tmp_path, TinyBert())
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(
            [("Transformer", ""), ("Pooling", "1_Pooling"), (kind, f"2_{kind}")]
        )
    ]
    write_json(folder / "modules.json", entries)
    with pytest.raises(CheckpointError, match=rf"modules\.json: module type '.*{kind}'"):
        Embedder.open(folder)


@pytest.mark.parametrize("name", NORMALIZE)
def test_num_04_unit_norm_is_the_folders_choice(check_case, name):
    check_case(name)


def test_num_04_norms_are_one_with_the_module_only(embed_spec):
    text = ["one two three"]
    with_module = embed_spec(NORMALIZE["normalize_on"].spec, text)
    without = embed_spec(NORMALIZE["normalize_off"].spec, text)
    assert abs(np.linalg.norm(with_module) - 1) < 1e-6
    assert abs(np.linalg.norm(without) - 1) > 1e-2


@pytest.mark.parametrize(("spec_on", "asked"), [(False, True), (True, False)])
def test_num_04_normalisation_can_be_overruled(embed_spec, spec_on, asked):
    got = embed_spec(replace(BASE, normalize=spec_on), TEXTS, normalize=asked)
    load_golden("normalize_on" if asked else "normalize_off").check(got)


@pytest.mark.parametrize("folder_exists", [False, True])
def test_a_normalize_folder_may_be_absent_or_say_its_features(tmp_path, folder_exists):
    folder = build(tmp_path, TinyBert(normalize=True, modules="new"))
    if folder_exists:
        names = {"module_input_name": "sentence_embedding"}
        write_json(folder / "2_Normalize" / "config.json", names)
        edit_json(folder / "2_Normalize" / "config.json", module_output_name="sentence_embedding")
    with Embedder.open(folder, dtype="float32") as embedder:
        load_golden("normalize_on").check(embedder.encode(list(TEXTS)))


@pytest.mark.parametrize("dim", [1, 8, 15, 16])
def test_a_cut_vector_is_the_full_ones_first_values_normalised_again(embed_spec, dim):
    spec = DENSE["dense_tanh"].spec
    full = embed_spec(spec, TEXTS).astype(np.float64)[:, :dim]
    want = full / np.linalg.norm(full, axis=1, keepdims=True)
    got = embed_spec(spec, TEXTS, dim=dim)
    assert got.shape == (len(TEXTS), dim)
    assert largest(got, want) < 1e-6


def test_a_cut_vector_stays_unnormalised_where_the_full_one_is(embed_spec):
    full = embed_spec(BASE, TEXTS)
    np.testing.assert_array_equal(embed_spec(BASE, TEXTS, dim=5), full[:, :5])


def test_the_transformer_may_lie_in_a_folder_of_its_own(embed_spec):
    got = embed_spec(replace(BASE, transformer_folder="0_Transformer"), TEXTS)
    np.testing.assert_array_equal(got, embed_spec(BASE, TEXTS))
