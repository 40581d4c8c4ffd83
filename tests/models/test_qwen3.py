"""Qwen3 against the reference: NUM-06, NUM-15, NUM-16, NUM-20, NUM-26."""

from __future__ import annotations

import numpy as np
import pytest
from families.qwen3 import CASES, GROUPED, MAX_TOKENS, SLIDING, TEXTS
from families.tiny_model import END, END_ID, build_model, word_tokenizer, write_tensors_and_ids
from family_goldens import LARGEST_DIFFERENCE, each_layout, embed_rows, load_family_golden
from folders import edit_json
from goldens import NEARER, largest, smallest_cosine

import arch
from arch import CheckpointError
from drivers.types import Encoding
from pipeline import Embedder

SLOTS = ("slot_before_the_last", "slot_of_the_padding", "no_end_token")


@pytest.mark.parametrize(("name", "layout"), each_layout(CASES))
def test_every_layout_matches_the_reference(check_family, name, layout):
    check_family(name, layout)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_num_06_the_last_token_is_a_rows_own_in_any_batch(driver, load_family, order):
    golden = load_family_golden("qwen3_grouped")
    picked = [golden.case.lengths.index((10, 4, 1)[i]) for i in order]
    rows = [golden.case.rows()[i] for i in picked]
    model = load_family(golden.case.spec)
    together = model.forward(driver, [Encoding(row) for row in rows])
    alone = np.concatenate([model.forward(driver, [Encoding(row)]) for row in rows])
    assert largest(together, golden.right[picked]) < 1e-5
    assert largest(alone, golden.right[picked]) < 1e-5


def test_num_06_other_slots_than_the_last_are_far_off(check_family):
    golden = check_family("qwen3_grouped", "old")
    width = golden.case.spec.hidden
    right = golden.right[golden.case.wrong_rows()]
    for slot in SLOTS:
        wrong = golden.wrong[slot]
        assert largest(wrong[:, :width], right[:, :width]) > 1
        mean_moves = largest(wrong[:, width:], right[:, width:]) > LARGEST_DIFFERENCE
        assert mean_moves == (slot == "no_end_token")


def test_nothing_flows_from_later_tokens_to_earlier_ones(driver, load_family):
    model = load_family(GROUPED)
    row, longer = GROUPED.row(20), GROUPED.row(30)
    longer[:20] = row
    states = [
        driver.to_host(model.encode(driver, driver.prepare_batch_unpadded([Encoding(ids)])))
        for ids in (row, longer)
    ]
    assert largest(states[0], states[1][:20]) < 1e-5


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_num_15_one_token_beside_200_stays_finite_and_the_same(driver, family_folder, dtype):
    model = arch.load(family_folder(GROUPED), driver, dtype)
    rows = GROUPED.rows((1, 200))
    together = model.forward(driver, [Encoding(row) for row in rows])
    alone = np.concatenate([model.forward(driver, [Encoding(row)]) for row in rows])
    assert np.isfinite(together).all()
    if dtype == np.float32:
        assert largest(together, alone) < 1e-5
    else:
        assert smallest_cosine(together, alone) > 0.9995


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("qwen3_grouped", {"no_q_norm", "no_k_norm", "norms_exchanged", "kv_tiled"}),
        ("qwen3_head_dim_not_said", {"no_q_norm", "kv_tiled"}),
        ("qwen3_as_many_kv_heads", {"no_q_norm", "not_causal"}),
    ],
)
def test_num_16_head_dim_kv_heads_and_norms_of_heads(check_family, name, wrong):
    golden = check_family(name, "old")
    spec = golden.case.spec
    assert spec.heads * spec.head_dim != spec.hidden or spec.kv_heads == spec.heads
    assert wrong <= set(golden.wrong)


def test_num_16_shapes_are_those_of_the_config(load_family):
    shapes = {name: shape for name, (_, shape) in GROUPED.shapes().items()}
    attention = {part: shapes[f"layers.0.self_attn.{part}.weight"] for part in ("q_proj", "k_proj")}
    assert attention == {"q_proj": (128, 64), "k_proj": (64, 64)}
    assert shapes["layers.0.self_attn.o_proj.weight"] == (64, 128)
    assert shapes["layers.0.self_attn.q_norm.weight"] == (32,)
    load_family(GROUPED)


def test_num_20_a_residual_of_2000_stays_finite_in_float16(tmp_path, driver, monkeypatch):
    rows = GROUPED.rows((2, 7, 66, 130))
    peaks = []
    add_norm = driver.add_norm

    def recording(x, residual, norm, **options):
        peaks.append(float(np.abs(driver.to_host(x)).max()))
        return add_norm(x, residual, norm, **options)

    monkeypatch.setattr(driver, "add_norm", recording)
    plain = arch.load(build_model(tmp_path / "plain", GROUPED), driver, np.float32)
    want = embed_rows(plain, driver, rows)
    scale = 2000 / max(peaks)
    folder = build_model(tmp_path / "scaled", GROUPED)
    tensors = GROUPED.weights()
    for name in tensors:  # the stream grows by `scale`, and every norm of it stays as it was
        if name.endswith(("embed_tokens.weight", "o_proj.weight", "down_proj.weight")):
            tensors[name] *= np.float32(scale)
    write_tensors_and_ids(folder / "model.safetensors", tensors)
    peaks.clear()
    got = embed_rows(arch.load(folder, driver, np.float16), driver, rows)
    assert 1900 < max(peaks) < 2100
    assert np.isfinite(got).all()
    assert smallest_cosine(got, want) > 0.999


def test_num_26_one_end_token_is_added_last_and_kept_after_truncation(family_folder, open_embedder):
    embedder = open_embedder(family_folder(GROUPED), max_seq_len=MAX_TOKENS)
    tokenized = embedder.tokenize(list(TEXTS))
    ids = [tuple(e.input_ids.tolist()) for e in tokenized.encodings]
    assert ids == list(TEXTS.values())
    for text, row in zip(TEXTS, ids):
        assert row[-1] == END_ID
        assert row.count(END_ID) == 1 + text.count(END)
    assert tokenized.truncated.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("max_batch_tokens", [1, MAX_TOKENS, 1000])
def test_num_26_the_added_end_token_is_pooled_though_it_is_the_padding(
    family_folder, open_embedder, max_batch_tokens
):
    golden = load_family_golden("qwen3_texts")
    config = golden.case.spec.config("new")
    assert config["pad_token_id"] == END_ID != config["eos_token_id"]
    embedder = open_embedder(
        family_folder(GROUPED), max_seq_len=MAX_TOKENS, max_batch_tokens=max_batch_tokens
    )
    golden.check(embedder.encode(list(TEXTS)))
    assert {"no_end_token", "end_token_twice", "slot_before_the_last"} <= set(golden.wrong)


def test_num_26_an_empty_text_is_the_end_token_alone(family_folder, open_embedder):
    golden = load_family_golden("qwen3_grouped")
    got = open_embedder(family_folder(GROUPED)).encode([""])
    assert largest(got, golden.right[golden.case.lengths.index(1)][None]) < LARGEST_DIFFERENCE


def test_num_26_a_tokenizer_that_adds_no_end_token_is_refused(tmp_path, driver):
    folder = build_model(tmp_path, GROUPED)
    word_tokenizer(GROUPED.vocab, adds_end=False).save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: adds no special token at the end"):
        Embedder.open(folder, driver=driver.name)
    with Embedder.open(folder, driver=driver.name, pooling="mean") as embedder:
        assert embedder.encode(["w7 w8"]).shape == (1, GROUPED.hidden)


def test_a_folder_without_modules_pools_as_the_library_does(tmp_path, driver):
    """Its last token where the checkpoint is a language model's, else the mean."""
    golden = load_family_golden("qwen3_grouped")
    rows, last = golden.case.rows()[:11], np.split(golden.right[:11], 2, axis=1)
    for layout, want, other in (("new_causal_lm", *last), ("new", *reversed(last))):
        folder = build_model(tmp_path / layout, GROUPED, layout)
        (folder / "modules.json").unlink()
        got = embed_rows(arch.load(folder, driver, np.float32), driver, rows)
        assert largest(got, want) < LARGEST_DIFFERENCE
        assert largest(got, other) > NEARER * largest(got, want)


def test_a_window_that_is_not_used_is_none(check_family, tmp_path, driver):
    golden = check_family("qwen3_window_off", "old")
    folder = build_model(tmp_path, golden.case.spec, "new")
    edit_json(folder / "config.json", use_sliding_window=None)
    rows = golden.case.rows()
    golden.check(embed_rows(arch.load(folder, driver, np.float32), driver, rows))


@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ({"sliding_window": None}, (None, None, None)),
        ({"sliding_window": 5}, (None, 5, 5)),
        ({"sliding_window": 5, "max_window_layers": 3}, (None, None, None)),
        ({"sliding_window": 5, "use_sliding_window": False}, (None, None, None)),
    ],
    ids=str,
)
def test_windows_by_layer_are_the_librarys(tmp_path, driver, said, windows):
    """Checked with `Qwen3Config`: its `layer_types`, and its `sliding_window` where they slide."""
    folder = build_model(tmp_path, SLIDING, "old")
    edit_json(folder / "config.json", **said)
    assert arch.load(folder, driver, np.float32).cfg.windows == windows
