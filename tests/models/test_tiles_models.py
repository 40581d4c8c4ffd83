"""Whole models in bfloat16 on emulated tiles: near float32, native throughout, the same bits in
any company."""

from __future__ import annotations

import numpy as np
import pytest

from arch import classic_bert, modern_bert, nomic_bert, qwen3
from arch.rope import RopeSettings, pack_rope
from drivers import Encoding, open_driver
from drivers.dtypes import BFLOAT16
from drivers.types import EmbeddingTable, NormWeights, QkNorm
from pipeline import Embedder
from tests.tiles import TILE_SETS

pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")

LENGTHS = (7, 1, 33, 18)
VOCAB, POSITIONS, HIDDEN, HEADS, INNER = 50, 40, 64, 2, 96


class Weights:
    """Random weights by role, packed for a driver: the same for every dtype."""

    def __init__(self, driver, dtype):
        self.driver, self.dtype = driver, dtype
        self._rng = np.random.default_rng(5)

    def _pack(self, values, role):
        return self.driver.pack(values.astype(np.float32), role, self.dtype)

    def table(self, rows):
        return self._pack(self._rng.standard_normal((rows, HIDDEN)), "table")

    def linear(self, out, width, role="linear"):
        return self._pack(self._rng.standard_normal((out, width)) * 1.2 * width**-0.5, role)

    def vector(self, size, middle=0.0):
        return self._pack(middle + 0.2 * self._rng.standard_normal(size), "vector")

    def norm(self, size=HIDDEN, kind="layer"):
        bias = self.vector(size) if kind == "layer" else None
        return NormWeights(self.vector(size, 1.0), bias, 1e-6, kind)


def bert(w):
    cfg = classic_bert.ClassicBertConfig(
        VOCAB, POSITIONS, 0, 2, HIDDEN, 2, HEADS, INNER, "gelu", 1e-12
    )
    tables = [
        EmbeddingTable(w.table(VOCAB), "input_ids"),
        EmbeddingTable(w.table(2), "token_type_ids"),
        EmbeddingTable(w.table(POSITIONS), "position_ids"),
    ]
    norm = w.norm()
    position_bias = np.random.default_rng(3).standard_normal((HEADS, 2 * POSITIONS - 1))
    layers = [
        classic_bert.LayerWeights(
            qkv=w.linear(3 * HIDDEN, HIDDEN),
            qkv_bias=w.vector(3 * HIDDEN),
            attn_out=w.linear(HIDDEN, HIDDEN),
            attn_out_bias=w.vector(HIDDEN),
            attn_norm=w.norm(),
            mlp_in=w.linear(INNER, HIDDEN),
            mlp_in_bias=w.vector(INNER),
            mlp_out=w.linear(HIDDEN, INNER),
            mlp_out_bias=w.vector(HIDDEN),
            mlp_norm=w.norm(),
        )
        for _ in range(2)
    ]

    def encode(driver, batch):
        x = driver.embed(batch, tables, norm)
        bias = driver.from_host(position_bias.astype(np.float32))
        for layer in layers:
            x = classic_bert.encoder_layer(driver, x, layer, bias, batch, cfg)
        return x

    return encode


def modern(w):
    words, norm, last = EmbeddingTable(w.table(VOCAB), "input_ids"), w.norm(), w.norm()
    ropes = {
        half_window: pack_rope(w.driver, RopeSettings(theta, HIDDEN // HEADS), POSITIONS)
        for half_window, theta in ((None, 160_000.0), (4, 10_000.0))
    }
    layers = [
        modern_bert.LayerWeights(
            attn_norm=attn_norm,
            qkv=w.linear(3 * HIDDEN, HIDDEN),
            qkv_bias=None,
            rope=ropes[half_window],
            half_window=half_window,
            attn_out=w.linear(HIDDEN, HIDDEN),
            attn_out_bias=None,
            mlp_norm=w.norm(),
            mlp_in=w.linear(2 * INNER, HIDDEN, "gated"),
            mlp_in_bias=None,
            mlp_out=w.linear(HIDDEN, INNER),
            mlp_out_bias=None,
        )
        for attn_norm, half_window in ((None, None), (w.norm(), 4))
    ]

    class Config:
        num_heads, act = HEADS, "gelu"

    def encode(driver, batch):
        x = driver.embed(batch, [words], norm)
        for layer in layers:
            x = modern_bert.encoder_layer(driver, x, layer, batch, Config)
        return driver.add_norm(x, None, last)

    return encode


def nomic(w):
    tables = [
        EmbeddingTable(w.table(VOCAB), "input_ids"),
        EmbeddingTable(w.table(2), "token_type_ids"),
    ]
    norm = w.norm()
    rope = pack_rope(w.driver, RopeSettings(1000.0, HIDDEN // HEADS), POSITIONS)
    layers = [
        nomic_bert.LayerWeights(
            qkv=w.linear(3 * HIDDEN, HIDDEN),
            qkv_bias=None,
            attn_out=w.linear(HIDDEN, HIDDEN),
            attn_out_bias=None,
            attn_norm=w.norm(),
            mlp_in=w.linear(2 * INNER, HIDDEN, "gated"),
            mlp_in_bias=None,
            mlp_out=w.linear(HIDDEN, INNER),
            mlp_out_bias=None,
            mlp_norm=w.norm(),
        )
        for _ in range(2)
    ]

    class Config:
        num_heads, act = HEADS, "silu"

    def encode(driver, batch):
        x = driver.embed(batch, tables, norm)
        for layer in layers:
            x = nomic_bert.encoder_layer(driver, x, layer, rope, batch, Config)
        return x

    return encode


def qwen(w):
    """Heads of 128 for a hidden size of 64, two of them to one key head."""
    dim = 128
    words, last = EmbeddingTable(w.table(VOCAB), "input_ids"), w.norm(kind="rms")
    rope = pack_rope(w.driver, RopeSettings(1e6, dim), POSITIONS)
    layers = [
        qwen3.LayerWeights(
            attn_norm=w.norm(kind="rms"),
            qkv=w.linear((HEADS + 2) * dim, HIDDEN),
            qkv_bias=None,
            qk_norm=QkNorm(w.vector(dim, 1.0), w.vector(dim, 1.0), 1e-6),
            rope=rope,
            window_left=window,
            attn_out=w.linear(HIDDEN, HEADS * dim),
            attn_out_bias=None,
            mlp_norm=w.norm(kind="rms"),
            mlp_in=w.linear(2 * INNER, HIDDEN, "gated"),
            mlp_out=w.linear(HIDDEN, INNER),
        )
        for window in (None, 8)
    ]

    class Config:
        num_heads, kv_heads, head_dim, act = HEADS, 1, dim, "silu"

    def encode(driver, batch):
        x = driver.embed(batch, [words])
        for layer in layers:
            x = qwen3.decoder_layer(driver, x, layer, batch, Config)
        return driver.add_norm(x, None, last)

    return encode


FAMILIES = {"bert": bert, "modernbert": modern, "nomic_bert": nomic, "qwen3": qwen}


def some_encodings(lengths):
    rng = np.random.default_rng(9)
    return [Encoding(rng.integers(0, VOCAB, n).astype(np.int32)) for n in lengths]


def vectors(driver, encode, encodings):
    """Mean and last token of each sequence, and all tokens in between: (B, 2 E)."""
    batch = driver.prepare_batch_unpadded(encodings)
    return driver.pool(encode(driver, batch), batch, ["mean", "last"], normalize=False)


def cosines(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("name", TILE_SETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_in_bfloat16_is_near_float32_and_runs_on_tiles(family, name):
    driver, exact = open_driver(f"cpu:{name}"), open_driver("numpy")
    encode = FAMILIES[family](Weights(driver, BFLOAT16))
    got = vectors(driver, encode, some_encodings(LENGTHS))
    want = vectors(exact, FAMILIES[family](Weights(exact, np.float32)), some_encodings(LENGTHS))
    assert cosines(got, want).min() >= 0.999
    assert np.abs(got - want).max() > 1e-4  # rounded, that is to say
    assert not driver.composed_calls
    gated = family != "bert"
    norms = {"bert": 4, "nomic_bert": 4, "modernbert": 4, "qwen3": 5}[family]
    assert dict(driver.native_calls) == {
        "embed": 1,
        "linear": 6 if gated else 8,
        **({"gated_linear": 2} if gated else {}),
        "attention": 2,
        "add_norm": norms,
        "pool": 1,
    }


@pytest.mark.parametrize("name", TILE_SETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_vectors_bits_do_not_depend_on_its_batch(family, name):
    driver = open_driver(f"cpu:{name}")
    encode, rows = FAMILIES[family](Weights(driver, BFLOAT16)), some_encodings(LENGTHS)
    together = vectors(driver, encode, rows)
    order = [2, 0, 3, 1]
    shuffled = vectors(driver, encode, [rows[i] for i in order])
    np.testing.assert_array_equal(shuffled, together[order])
    alone = [vectors(driver.new_for_clone(), encode, [row])[0] for row in rows]
    np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize("name", TILE_SETS)
def test_minilm_in_bfloat16_is_near_float32(minilm, name):
    texts = [
        "The quick brown fox jumps over the lazy dog.",
        "Retry with a growing delay until the lock is free, or give up after a minute.",
        "def cosine(a, b): return a @ b / (norm(a) * norm(b))",
        "Le vent se lève, il faut tenter de vivre.",
        "x",
        "A B-tree keeps its keys sorted and its leaves at one depth; a split moves the middle key "
        "up, and where that overflows the parent, on towards the root, which then gets a new one.",
    ]
    with (
        Embedder.open(minilm, driver=f"cpu:{name}", dtype="bfloat16") as tiles,
        Embedder.open(minilm, driver="numpy", dtype="float32") as exact,
    ):
        assert tiles.model.dtype == BFLOAT16
        got, want = tiles.encode(texts), exact.encode(texts)
    assert cosines(got, want).min() >= 0.9999
