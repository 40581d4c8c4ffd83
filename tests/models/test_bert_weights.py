"""How weights are stored and named: NUM-21 and NUM-23, shards, mapping, float16."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from catalogue import BASE, STORED, TEXTS
from folders import TinyBert, bert_weights, build, encode_tensor, write_safetensors
from goldens import load_golden, minilm_rows, smallest_cosine

import arch
from arch import CheckpointError
from arch.weights import open_safetensors, open_weights, to_host
from drivers import open_driver

PREFIXES = ("", "bert.", "roberta.", "model.", "0.auto_model.", "auto_model.", "a.b.c.")

EXTRAS = (
    ("cls.predictions.bias", (9,)),
    ("cls.predictions.transform.dense.weight", (4, 4)),
    ("cls.seq_relationship.weight", (2, 8)),
    ("lm_head.bias", (9,)),
)

BFLOAT16 = [1.0, -2.5, 3.0e38, 1e-30, 0.0]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_num_21_every_prefix_gives_the_same_vectors(embed_spec, prefix):
    got = embed_spec(replace(BASE, prefix=prefix), TEXTS)
    np.testing.assert_array_equal(got, embed_spec(BASE, TEXTS))
    load_golden("types_two").check(got)


@pytest.mark.parametrize("prefix", ["bert.", "0.auto_model."])
def test_num_21_heads_of_pretraining_beside_a_prefixed_backbone_are_ignored(embed_spec, prefix):
    got = embed_spec(replace(BASE, prefix=prefix, extras=EXTRAS), TEXTS)
    np.testing.assert_array_equal(got, embed_spec(BASE, TEXTS))


def test_num_21_pooler_and_position_ids_may_be_there_or_not(tmp_path, embed_spec, open_embedder):
    folder = build(tmp_path, replace(BASE, extras=(("embeddings.position_ids", (1, 64)),)))
    with_extras = open_embedder(folder).encode(list(TEXTS))
    tensors = {k: v for k, v in bert_weights(BASE).items() if not k.startswith("pooler")}
    rows = [(k, "F32", v.shape, encode_tensor(v, "F32")) for k, v in tensors.items()]
    write_safetensors(folder / "model.safetensors", rows)
    without_pooler = open_embedder(folder).encode(list(TEXTS))
    want = embed_spec(BASE, TEXTS)
    np.testing.assert_array_equal(with_extras, want)
    np.testing.assert_array_equal(without_pooler, want)


@pytest.mark.parametrize("missing", sorted(k for k in bert_weights(BASE) if "pooler" not in k))
def test_num_21_every_backbone_tensor_is_consumed(tmp_path, missing):
    folder = build(tmp_path, replace(BASE, prefix="bert."))
    tensors = {f"bert.{k}": v for k, v in bert_weights(BASE).items() if k != missing}
    rows = [(k, "F32", v.shape, encode_tensor(v, "F32")) for k, v in tensors.items()]
    write_safetensors(folder / "model.safetensors", rows)
    with pytest.raises(CheckpointError, match=missing):
        arch.load(folder, open_driver("null"), np.float32)


def test_num_21_old_names_of_norms_are_known(embed_spec):
    got = embed_spec(replace(BASE, old_norm_names=True, prefix="bert."), TEXTS)
    np.testing.assert_array_equal(got, embed_spec(BASE, TEXTS))


@pytest.mark.parametrize("name", STORED)
def test_num_23_stored_dtypes_match_the_reference(check_case, name):
    check_case(name)


@pytest.mark.parametrize("stored", ["F16", "BF16", "mixed"])
def test_num_23_stored_dtypes_stay_near_the_float32_model(embed_spec, stored):
    got = embed_spec(replace(BASE, stored=stored), TEXTS)
    assert smallest_cosine(got, embed_spec(BASE, TEXTS)) > 0.9999


def test_num_23_bfloat16_is_widened_exactly(tmp_path):
    values = np.array(BFLOAT16, dtype=np.float32)
    data = encode_tensor(values, "BF16")
    assert data[:2] == (0x3F80).to_bytes(2, "little")
    write_safetensors(tmp_path / "one.safetensors", [("x", "BF16", (5,), data)])
    got = to_host("x", open_safetensors(tmp_path / "one.safetensors")["x"])
    want = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    assert np.abs(got / np.where(values, values, 1) - (values != 0)).max() < 2**-8


@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_num_23_weights_beyond_float16_are_refused_rather_than_made_infinite(tmp_path, stored):
    folder = build(tmp_path, BASE)
    tensors = bert_weights(BASE)
    tensors["encoder.layer.1.output.dense.bias"][3] = 3.0e38
    rows = [(k, stored, v.shape, encode_tensor(v, stored)) for k, v in tensors.items()]
    write_safetensors(folder / "model.safetensors", rows)
    arch.load(folder, open_driver("numpy"), np.float32)
    with pytest.raises(CheckpointError, match=r"mlp_out_bias.* reaches .*e\+38.* float16"):
        arch.load(folder, open_driver("numpy"), np.float16)


@pytest.mark.parametrize("shards", [2, 3, 7])
def test_sharded_weights_equal_a_single_file_bitwise(embed_spec, shards):
    got = embed_spec(replace(BASE, shards=shards, prefix="bert."), TEXTS)
    np.testing.assert_array_equal(got, embed_spec(BASE, TEXTS))


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "mixed"])
def test_data_at_an_odd_offset_is_read_the_same(embed_spec, stored):
    got = embed_spec(replace(BASE, stored=stored, padded_header=False), TEXTS)
    load_golden(f"stored_{stored}").check(got)


@pytest.mark.parametrize(("stored", "mapped"), [("F32", True), ("F16", True), ("BF16", False)])
def test_stored_tensors_are_views_of_the_mapped_file(folder_of, stored, mapped):
    tensors = open_weights(folder_of(replace(BASE, stored=stored)))
    for name, tensor in tensors.items():
        values = to_host(name, tensor)
        assert np.shares_memory(values, tensor.data) == mapped
        assert _root(tensor.data) is not None


def test_packing_float32_for_the_portable_driver_copies_nothing(folder_of):
    driver = open_driver("numpy")
    for name, tensor in open_weights(folder_of(BASE)).items():
        role = "linear" if len(tensor.shape) == 2 else "vector"
        packed = driver.pack(to_host(name, tensor), role, np.float32)
        assert np.shares_memory(packed, tensor.data), name


def test_loading_a_real_model_allocates_little_beside_its_fused_projections(minilm):
    tracemalloc.start()
    try:
        model = arch.load(minilm, open_driver("numpy"), np.float32)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert model.dim == 384
    fused_bytes = 6 * 3 * 384 * 385 * 4
    assert peak_bytes < fused_bytes + 4_000_000  # the file has 90 MB


def test_float16_storage_stays_near_float32(embed_spec):
    for spec in (BASE, TinyBert(hidden=128, heads=2, std=0.15, stored="BF16", normalize=True)):
        wide, half = embed_spec(spec, TEXTS), embed_spec(spec, TEXTS, dtype="float16")
        assert half.dtype == np.float32
        assert smallest_cosine(wide, half) > 0.9995
        assert not np.array_equal(wide, half)


def test_float16_storage_of_the_real_model_stays_near_float32(minilm, open_embedder):
    texts = [row["text"] for row in minilm_rows()[::25]]
    wide = open_embedder(minilm, dtype="float32").encode(texts)
    half = open_embedder(minilm, dtype="float16").encode(texts)
    assert smallest_cosine(wide, half) > 0.9995


def _root(view: np.ndarray) -> np.memmap | None:
    """The mapped file at the end of a view's chain of bases."""
    while view is not None and not isinstance(view, np.memmap):
        view = view.base
    return view
