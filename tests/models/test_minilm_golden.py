"""all-MiniLM-L6-v2 on 500 real texts against sentence-transformers, and NUM-08 on real texts."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from goldens import largest, minilm_json, minilm_rows, minilm_vectors

from pipeline import Embedder

LARGEST_DIFFERENCE = 2e-5
NEIGHBOUR_NOISE = 1e-6

ROWS = minilm_rows()
SOME = (*range(0, 275, 5), 300, 340, *range(475, 500, 5))  # of 2 to over 100 tokens
SOME_TEXTS = [ROWS[i]["text"] for i in SOME]


@pytest.fixture(scope="module")
def alone(minilm) -> np.ndarray:
    """The vectors of SOME_TEXTS, each embedded by a call of its own."""
    with Embedder.open(minilm, dtype="float32") as embedder:
        return np.concatenate([embedder.encode([text]) for text in SOME_TEXTS])


def test_the_weights_are_those_of_the_golden(minilm):
    digest = hashlib.sha256((minilm / "model.safetensors").read_bytes()).hexdigest()
    assert digest == minilm_json()["weights_sha256"]


def test_golden_texts_cover_lengths_from_one_token_to_over_512():
    tokens = np.array([row["tokens"] for row in ROWS])
    assert len(tokens) == len(minilm_vectors(512)) == 500
    assert tokens.min() == 2
    assert (tokens > 512).sum() >= 5
    assert set(range(2, 41)) <= set(tokens.tolist())
    assert {127, 128, 129, 255, 256, 257, 510, 511, 512, 513} <= set(tokens.tolist())


def test_real_texts_at_512_tokens_match_the_reference(minilm, open_embedder):
    embedder = open_embedder(minilm, max_seq_len=512, threads=2)
    done = embedder.embed([row["text"] for row in ROWS])
    assert done.tokens.tolist() == [min(512, row["tokens"]) for row in ROWS]
    assert done.truncated.tolist() == [row["tokens"] > 512 for row in ROWS]
    assert largest(done.vectors, minilm_vectors(512)) < LARGEST_DIFFERENCE


def test_real_texts_at_the_folders_own_limit_match_the_reference(minilm, open_embedder):
    embedder = open_embedder(minilm, threads=2)
    said = minilm_json()
    limit, cut = said["own_limit"], said["rows_cut_at_own_limit"]
    assert embedder.max_seq_len == limit == 256
    assert cut == [i for i, row in enumerate(ROWS) if row["tokens"] > limit]
    at_limit, at_512 = minilm_vectors(limit), minilm_vectors(512)
    done = embedder.embed([ROWS[i]["text"] for i in cut])
    assert set(done.tokens.tolist()) == {limit}
    assert done.truncated.all()
    assert largest(done.vectors, at_limit) < LARGEST_DIFFERENCE
    assert largest(at_limit, at_512[cut]) > 1e-2
    uncut = [i for i in range(len(ROWS)) if i not in cut][::20]
    got = embedder.encode([ROWS[i]["text"] for i in uncut])
    assert largest(got, at_512[uncut]) < LARGEST_DIFFERENCE


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_batch_tokens", [1, 7, 64, 1024, 100_000])
def test_num_08_a_rows_vector_does_not_depend_on_budget_or_threads(
    minilm, open_embedder, alone, max_batch_tokens, threads
):
    embedder = open_embedder(minilm, max_batch_tokens=max_batch_tokens, threads=threads)
    assert largest(embedder.encode(SOME_TEXTS), alone) <= NEIGHBOUR_NOISE


@pytest.mark.parametrize("order", ["reversed", "shuffled", "doubled", "odd rows"])
def test_num_08_a_rows_vector_does_not_depend_on_its_neighbours(
    minilm, open_embedder, alone, rng, order
):
    count = len(SOME_TEXTS)
    taken = {
        "reversed": np.arange(count)[::-1],
        "shuffled": rng.permutation(count),
        "doubled": np.repeat(np.arange(0, count, 2), 2),
        "odd rows": np.arange(1, count, 2),
    }[order]
    got = open_embedder(minilm).encode([SOME_TEXTS[i] for i in taken])
    assert largest(got, alone[taken]) <= NEIGHBOUR_NOISE
