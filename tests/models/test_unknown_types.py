"""A model of no family here is refused with what it said of itself and what could be served."""

from __future__ import annotations

import json

import pytest
from catalogue import BASE
from folders import build, drop_json_keys, edit_json

import arch
from arch import CheckpointError
from drivers import open_driver

KNOWN = ", ".join(sorted(arch.ARCHS))
TYPES = ("new", "gemma3_text", "t5", "mistral", "model2vec", "BERT", "")


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        arch.load(folder, open_driver("null"), "float32")
    return str(caught.value)


@pytest.mark.parametrize("model_type", TYPES)
def test_an_unknown_type_is_named_beside_all_that_are_known(tmp_path, model_type):
    folder = build(tmp_path, BASE)
    edit_json(folder / "config.json", model_type=model_type)
    message = refusal(folder)
    assert message.startswith(str(folder / "config.json"))
    assert message.endswith(f"'model_type' is '{model_type}', wanted one of {KNOWN}")


def test_a_config_without_a_type_is_told_which_are_known(tmp_path):
    folder = build(tmp_path, BASE)
    drop_json_keys(folder / "config.json", "model_type")
    assert refusal(folder).endswith(f"'model_type' is nothing, wanted one of {KNOWN}")


def test_a_static_embedding_is_refused_by_its_module(tmp_path):
    folder = build(tmp_path, BASE)
    static = "sentence_transformers.models.StaticEmbedding"
    listed = [{"idx": 0, "name": "0", "path": ".", "type": static}]
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    assert f"module type '{static}' is not one of Transformer, Pooling" in refusal(folder)
