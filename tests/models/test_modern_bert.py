"""ModernBERT against the reference: NUM-11, NUM-12, NUM-13, NUM-15, NUM-20."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from families.modern_bert import CASES, EVERY_2, TinyModernBert
from families.tiny_model import build_model, write_tensors_and_ids
from family_goldens import LARGEST_DIFFERENCE, each_layout, embed_rows, load_family_golden
from folders import drop_json_keys, edit_json
from goldens import NEARER, largest, smallest_cosine

import arch
from arch import CheckpointError
from drivers.types import Encoding

ONE_LOCAL_LAYER = TinyModernBert(layers=1, layer_types=("sliding_attention",), local=8)
WINDOW_128 = TinyModernBert(layers=3)
LENGTHS = (127, 128, 129, 191, 192, 255, 256, 257, 288, 512)


@pytest.mark.parametrize(("name", "layout"), each_layout(CASES))
def test_every_layout_matches_the_reference(check_family, name, layout):
    check_family(name, layout)


@pytest.mark.parametrize("name", ["modern_gelu", "modern_tanh", "modern_silu"])
def test_num_11_the_activation_is_read_from_the_config(check_family, name):
    assert set(check_family(name, "new").wrong) & {"gelu", "tanh", "erf"}


def test_num_11_an_unknown_activation_is_a_load_error(tmp_path, driver):
    folder = build_model(tmp_path, WINDOW_128)
    edit_json(folder / "config.json", hidden_activation="made_up")
    with pytest.raises(CheckpointError, match=r"config\.json: 'hidden_activation' is 'made_up'"):
        arch.load(folder, driver, np.float32)


@pytest.mark.parametrize(("local", "each_side"), [(8, 4), (9, 4), (2, 1), (16, 8)])
def test_num_12_a_local_layer_sees_half_the_window_on_each_side(
    driver, load_family, local, each_side
):
    spec = replace(ONE_LOCAL_LAYER, local=local)
    model = load_family(spec)
    row, changed = spec.row(30), spec.row(30)
    changed[15] = (changed[15] + 1) % spec.vocab
    before, after = (_states(model, driver, ids) for ids in (row, changed))
    moved = np.flatnonzero(np.abs(before - after).max(axis=1) > 1e-6)
    assert moved.tolist() == list(range(15 - each_side, 15 + each_side + 1))


def test_num_12_a_text_longer_than_the_window_matches_the_reference(driver, load_family):
    golden = load_family_golden("modern_default")
    row = golden.case.lengths.index(515)
    off = largest(
        embed_rows(load_family(golden.case.spec), driver, [golden.case.rows()[row]]),
        golden.right[[row]],
    )
    assert off < LARGEST_DIFFERENCE
    at = golden.case.wrong_rows().index(row)
    for label in ("window_one_less", "window_one_more", "causal", "no_window"):
        assert largest(golden.wrong[label][[at]], golden.right[[row]]) > NEARER * off, label


@pytest.mark.parametrize("name", ["modern_default", "modern_every_2"])
def test_num_13_both_spellings_of_bases_and_pattern_give_identical_vectors(
    driver, load_family, name
):
    case = CASES[name]
    rows = case.spec.rows((7, 66, 130))
    new, old = (embed_rows(load_family(case.spec, kind), driver, rows) for kind in ("new", "old"))
    np.testing.assert_array_equal(new, old)


def test_num_13_every_second_layer_is_global_on_its_own_base(check_family):
    assert EVERY_2.kinds() == ["full_attention", "sliding_attention"] * 2 + ["full_attention"]
    wrong = {"bases_exchanged", "all_on_the_global_base", "all_on_the_local_base", "default_bases"}
    assert wrong <= set(check_family("modern_every_2", "old").wrong)


def test_num_13_a_null_local_base_is_the_global_one_and_never_the_default(check_family):
    golden = check_family("modern_null_local_base", "old")
    assert set(golden.wrong) == {"default_local_base"}


def test_num_13_absent_bases_and_pattern_are_the_librarys_defaults(tmp_path, driver):
    golden = load_family_golden("modern_default")
    folder = build_model(tmp_path, golden.case.spec, "old")
    drop_json_keys(
        folder / "config.json",
        *("global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"),
        *("local_attention", "norm_eps", "norm_bias", "attention_bias", "mlp_bias"),
        *("hidden_activation", "max_position_embeddings"),
    )
    rows = golden.case.rows()[:11]
    got = embed_rows(arch.load(folder, driver, np.float32), driver, rows)
    golden.check(got, range(11))


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("length", LENGTHS)
def test_num_15_a_short_text_beside_a_long_one_stays_finite_and_the_same(
    driver, family_folder, length, dtype
):
    model = arch.load(family_folder(WINDOW_128), driver, dtype)
    rows = WINDOW_128.rows((6, length))
    together = model.forward(driver, [Encoding(row) for row in rows])
    alone = np.concatenate([model.forward(driver, [Encoding(row)]) for row in rows])
    assert np.isfinite(together).all()
    if dtype == np.float32:
        assert largest(together, alone) < 1e-5
    else:
        assert smallest_cosine(together, alone) > 0.9995


def test_num_20_a_residual_of_2000_stays_finite_in_float16(tmp_path, driver, monkeypatch):
    spec = WINDOW_128
    rows = spec.rows((2, 7, 66, 130))
    peaks = _record_peaks(driver, monkeypatch)
    plain = arch.load(build_model(tmp_path / "plain", spec), driver, np.float32)
    want = embed_rows(plain, driver, rows)
    scale = 2000 / max(peaks)
    folder = build_model(tmp_path / "scaled", spec)
    tensors = spec.weights()
    for name in tensors:  # the stream grows by `scale`, and every norm of it stays as it was
        if name == "embeddings.norm.weight" or name.endswith(".Wo.weight"):
            tensors[name] *= np.float32(scale)
    tensors["layers.0.attn.Wqkv.weight"] /= np.float32(scale)  # no norm stands before it
    write_tensors_and_ids(folder / "model.safetensors", tensors)
    peaks.clear()
    got = embed_rows(arch.load(folder, driver, np.float16), driver, rows)
    assert 1900 < max(peaks) < 2100
    assert np.isfinite(got).all()
    assert smallest_cosine(got, want) > 0.999


def _states(model, driver, ids: np.ndarray) -> np.ndarray:
    """The last hidden states of one row: (S, E)."""
    batch = driver.prepare_batch_unpadded([Encoding(ids)])
    return driver.to_host(model.encode(driver, batch))


def _record_peaks(driver, monkeypatch) -> list[float]:
    """The largest magnitude that each norm of the stream reads, as the model runs."""
    peaks: list[float] = []
    add_norm = driver.add_norm

    def recording(x, residual, norm, **options):
        peaks.append(float(np.abs(driver.to_host(x)).max()))
        return add_norm(x, residual, norm, **options)

    monkeypatch.setattr(driver, "add_norm", recording)
    return peaks
