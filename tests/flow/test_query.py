"""Queries are embedded as the corpus was, by the same model or not at all."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from run_builder import GOOD, run_config, run_whole, stand_in_for_ray

from pipeline import Embedder
from pipeline.cli import main
from pipeline.errors import RayvecError, UsageError
from pipeline.index import Index
from pipeline.query import QueryEmbedder
from tests.models.folders import TinyBert, build, edit_json

ASKED = "find a river"
PROMPTED = TinyBert(prompts={"passage": "the ", "short": "a "}, default_prompt_name="short")
WITH_QUERY = replace(PROMPTED, prompts={"query": "search ", "passage": "the ", "short": "a "})


@pytest.fixture(autouse=True)
def embedded(monkeypatch):
    return stand_in_for_ray(monkeypatch)


@pytest.fixture
def index_of(tmp_path):
    """(spec of the model, keys by section) -> an index of three rows."""

    def one(spec=None, **sections):
        build(tmp_path / "model", spec or TinyBert())
        config = run_config(tmp_path, GOOD, **sections)
        run_whole(config)
        return Index.open(config.sink.uri)

    return one


def damaged(folder, name, at):
    data = bytearray((folder / name).read_bytes())
    data[at] ^= 1
    (folder / name).write_bytes(data)


def asked(index, **options):
    with QueryEmbedder.open(index) as embedder:
        return embedder.encode(ASKED, **options)


def embedded_text(index, text, **options):
    """The vector of a text with no prompt, by the Embedder alone, in the index's dtype."""
    summary = index.version.summary
    options = {"dtype": summary["dtype"], **options}
    with Embedder.open(summary["model"], **options) as embedder:
        return embedder.encode([text], prompt_text="")[0]


def test_a_row_finds_itself(index_of):
    index = index_of()
    with QueryEmbedder.open(index) as embedder:
        for row in GOOD:
            hit = index.search(embedder.encode(row["text"]), 1)[0]
            assert hit.row["id"] == row["id"]
            assert hit.score == pytest.approx(1, abs=1e-6)


def test_a_query_is_one_float32_vector(index_of):
    vector = asked(index_of())
    assert (vector.shape, vector.dtype) == ((32,), np.float32)


@pytest.mark.parametrize(
    "settings",
    [{"pooling": "cls"}, {"normalize": True}, {"dim": 8}, {"max_seq_len": 4}, {"dtype": "float16"}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_the_index_hold_for_its_queries(index_of, settings):
    index = index_of(model=settings)
    assert np.array_equal(asked(index), embedded_text(index, ASKED, **settings))
    assert index.version.summary | settings == index.version.summary


@pytest.mark.parametrize(
    ("spec", "settings", "prompt"),
    [
        (TinyBert(), {}, ""),
        (TinyBert(), {"prompt_text": "two "}, "two "),
        (PROMPTED, {}, "a "),
        (PROMPTED, {"prompt": "passage"}, "the "),
        (PROMPTED, {"prompt_text": ""}, ""),
        (WITH_QUERY, {}, "search "),
        (WITH_QUERY, {"prompt": "passage"}, "search "),
    ],
    ids=["none", "literal", "default", "named", "empty", "query", "query over named"],
)
def test_a_query_takes_the_query_prompt_or_else_that_of_the_corpus(
    index_of, spec, settings, prompt
):
    index = index_of(spec, model=settings)
    assert np.array_equal(asked(index), embedded_text(index, prompt + ASKED))


def test_a_prompt_that_is_asked_for_goes_first(index_of):
    index = index_of(WITH_QUERY, model={"prompt_text": "two "})
    assert np.array_equal(asked(index, prompt="short"), embedded_text(index, "a " + ASKED))
    assert np.array_equal(asked(index, prompt_text="ten "), embedded_text(index, "ten " + ASKED))
    assert np.array_equal(asked(index, prompt_text=""), embedded_text(index, ASKED))
    with pytest.raises(UsageError, match="has no prompt 'gone'"):
        asked(index, prompt="gone")
    with pytest.raises(UsageError, match="both given"):
        asked(index, prompt="short", prompt_text="ten ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: damaged(folder, "model.safetensors", -1), "its model_sha256 is"),
        (lambda folder: edit_json(folder / "config.json", layer_norm_eps=1e-6), "model_sha256"),
        (lambda folder: edit_json(folder / "tokenizer_config.json", extra=1), "tokenizer_sha256"),
    ],
    ids=["weights", "config", "tokenizer"],
)
def test_a_model_that_is_not_the_one_of_the_index_is_refused(index_of, tmp_path, change, said):
    index = index_of()
    change(tmp_path / "model")
    with pytest.raises(RayvecError, match=f"model: is not the model of the index: .*{said}") as it:
        QueryEmbedder.open(index)
    assert it.value.exit_code == 1


def test_a_model_that_moved_is_named_by_the_caller(index_of, tmp_path, capsys):
    index = index_of()
    before = asked(index)
    shutil.move(tmp_path / "model", tmp_path / "moved")
    with pytest.raises(UsageError, match="is no folder"):
        QueryEmbedder.open(index)
    with QueryEmbedder.open(index, model=str(tmp_path / "moved")) as embedder:
        assert np.array_equal(embedder.encode(ASKED), before)
    uri, moved = index.store.uri, str(tmp_path / "moved")
    assert main(["search", uri, "the cat", "-k", "1", "--model", moved]) == 0
    assert capsys.readouterr().out.split()[:2] == ["1.0000", "1"]


def test_another_model_in_the_place_of_one_that_moved_is_refused(index_of, tmp_path):
    index = index_of()
    other = build(tmp_path / "other", TinyBert(seed=8))
    with pytest.raises(RayvecError, match="other: is not the model of the index"):
        QueryEmbedder.open(index, model=str(other))
