"""Models of every family on the cpu driver: native calls alone, and bits that do not move."""

from __future__ import annotations

import logging
import os
from collections import Counter

import numpy as np
import pytest
from families import CASES, FAMILIES
from folders import DenseSpec, TinyBert
from goldens import minilm_rows

import arch
from drivers import open_driver
from drivers.types import Encoding
from pipeline import Embedder
from tests.tiles import TILE_SETS

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = [name for name in rayvec_native.instruction_sets() if name not in TILE_SETS]
FIRST = {family: next(iter(cases)) for family, cases in FAMILIES.items()}
FAMILY_NAMES = ["bert", *FIRST]
BERT = TinyBert(pooling=("cls", "mean", "max"))

POST_NORM = {"linear": 4, "attention": 1, "add_norm": 2}
GATED = {"linear": 3, "gated_linear": 1, "attention": 1, "add_norm": 2}
LAYER = dict.fromkeys(FAMILY_NAMES, POST_NORM) | {
    "modern_bert": GATED,  # the first layer has one norm less, and one follows the last
    "nomic_bert": GATED,
    "qwen3": GATED,
}
FINAL_NORMS = {"qwen3": 1}
NOT_COMPUTED = {"cls", "lasttoken"}  # pools that pick a row


@pytest.fixture
def folder(family_folder, folder_of):
    """family -> the folder of its first tiny model, its spec, and token rows of some lengths."""

    def get(family, lengths):
        if family == "bert":
            rows = [(np.arange(n) * 7 % 40 + 5).astype(np.int32) for n in lengths]
            return folder_of(BERT), BERT, [row[: BERT.positions] for row in rows]
        spec = CASES[FIRST[family]].spec
        return family_folder(spec), spec, spec.rows(lengths)

    return get


def forward(folder, rows, dtype):
    """The driver after one batch, and the model."""
    driver = open_driver("cpu")
    model = arch.load(folder, driver, dtype)
    driver.native_calls.clear()
    vectors = model.forward(driver, [Encoding(row) for row in rows])
    assert np.isfinite(vectors).all()
    return driver, model


def calls_of(family, spec):
    """The operations of one batch."""
    modes = spec.pooling if family == "bert" else spec.modes
    calls = Counter(embed=1, pool=len(set(modes) - NOT_COMPUTED))
    calls.update({op: spec.layers * count for op, count in LAYER[family].items()})
    calls["add_norm"] += FINAL_NORMS.get(family, 0)
    return +calls


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_float32_makes_native_calls_alone_and_one_for_each_operation(folder, family):
    path, spec, rows = folder(family, (1, 33, 7))
    driver, _ = forward(path, rows, np.float32)
    assert not driver.composed_calls
    assert driver.native_calls == calls_of(family, spec)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_float16_is_composed_and_counted_and_said_once(folder, family, caplog):
    path, spec, rows = folder(family, (1, 33, 7))
    caplog.set_level(logging.INFO, "drivers.cpu")
    driver, model = forward(path, rows, np.float16)
    assert not driver.native_calls
    once = calls_of(family, spec)
    assert driver.composed_calls == once
    model.forward(driver, [Encoding(rows[0])])
    assert driver.composed_calls == once + once
    said = Counter(record.getMessage() for record in caplog.records)
    assert said == {
        f"cpu: no kernel for this {op}; it is composed from primitives": 1 for op in once
    }


# ---- the same bits


LENGTHS = (33, 1, 7, 64, 2, 65, 14, 130, 15, 3, 128, 31)
BATCHINGS = [(1, None), (1, 1), (1, 70), (2, 130), (2, 100_000)]


def check_bits(path, encodings, driver="cpu", batchings=BATCHINGS):
    """Alone, then in batches of many sizes on one thread and on two, in two orders."""
    with Embedder.open(path, driver=driver, dtype="float32") as embedder:
        alone = np.concatenate([embedder.encode_tokens([one]) for one in encodings])
    order = np.random.default_rng(5).permutation(len(encodings))
    for threads, budget in batchings:
        opened = Embedder.open(
            path, driver=driver, dtype="float32", threads=threads, max_batch_tokens=budget
        )
        with opened as embedder:
            assert np.array_equal(embedder.encode_tokens(encodings), alone), (threads, budget)
            shuffled = embedder.encode_tokens([encodings[row] for row in order])
            assert np.array_equal(shuffled, alone[order]), (threads, budget)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_rows_vector_has_the_same_bits_whatever_its_batch(folder, family):
    path, _, rows = folder(family, LENGTHS)
    check_bits(path, [Encoding(row) for row in rows])


@pytest.mark.parametrize("name", ["nomic_dynamic", "modern_every_2"])
def test_tables_by_length_and_narrow_windows_keep_the_bits(family_folder, name):
    spec = CASES[name].spec
    check_bits(family_folder(spec), [Encoding(row) for row in spec.rows((*LENGTHS, 200))])


@pytest.mark.parametrize("name", SETS)
def test_every_set_keeps_the_bits(folder, name):
    path, _, rows = folder("bert", LENGTHS)
    check_bits(path, [Encoding(row) for row in rows], driver=f"cpu:{name}")


@pytest.mark.parametrize("width", [16, 200])
def test_modules_after_the_pool_keep_the_bits(folder_of, width):
    """They run on the host, over all vectors of a batch at once."""
    spec = TinyBert(dense=(DenseSpec(32, width), DenseSpec(width, 24)), normalize=True)
    rows = [(np.arange(n) * 7 % 40 + 5).astype(np.int32)[:64] for n in LENGTHS]
    check_bits(folder_of(spec), [Encoding(row) for row in rows])


def test_minilm_keeps_the_bits_of_real_texts(minilm):
    texts = [row["text"] for row in minilm_rows()[::25] if row["tokens"] < 200]
    with Embedder.open(minilm, driver="cpu", dtype="float32") as embedder:
        encodings = embedder.tokenize(texts).encodings
    check_bits(minilm, encodings, batchings=[(1, None), (2, 300)])
