"""A text's vector does not depend on its neighbours: NUM-08 on a tiny model."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue import MASK_SLIPS, PADDING
from goldens import largest, load_golden, smallest_cosine

CASE = PADDING["neighbours"]
TEXTS = list(CASE.texts)


def test_num_08_padding_does_not_leak_into_attention_or_pooling(check_case):
    golden = check_case("neighbours")
    assert set(golden.wrong) == set(MASK_SLIPS)


def test_num_08_a_short_text_is_the_same_alone_and_among_long_ones(folder_of, open_embedder):
    golden = load_golden("neighbours")
    embedder = open_embedder(folder_of(CASE.spec), max_batch_tokens=100_000)
    alone, among = embedder.encode(["alpha"]), embedder.encode(TEXTS)[:1]
    assert largest(alone, golden.right[:1]) < 1e-5
    assert largest(among, golden.right[:1]) < 1e-5
    assert largest(alone, among) < 1e-6
    for slip in MASK_SLIPS:
        assert largest(among, golden.wrong[slip][:1]) > 1000 * largest(among, golden.right[:1])


@pytest.mark.parametrize("rows", [1, 2, 7, 32])
@pytest.mark.parametrize("order", ["sorted", "reversed", "shuffled"])
def test_num_08_every_arrangement_gives_the_same_vectors(
    folder_of, open_embedder, rng, rows, order
):
    longest = 122
    embedder = open_embedder(folder_of(CASE.spec), max_batch_tokens=rows * longest)
    orders = {
        "sorted": np.argsort([len(text) for text in TEXTS]),
        "reversed": np.arange(len(TEXTS))[::-1],
        "shuffled": rng.permutation(len(TEXTS)),
    }
    taken = orders[order]
    got = embedder.encode([TEXTS[i] for i in taken])
    assert largest(got, load_golden("neighbours").right[taken]) < 1e-5


def test_num_08_float16_neighbours_change_a_vector_by_rounding_only(folder_of, open_embedder):
    embedder = open_embedder(folder_of(CASE.spec), dtype="float16", max_batch_tokens=100_000)
    together = embedder.encode(TEXTS)
    alone = np.concatenate([embedder.encode([text]) for text in TEXTS])
    assert smallest_cosine(together, alone) > 0.9995
    assert smallest_cosine(together, load_golden("neighbours").right) > 0.9995
