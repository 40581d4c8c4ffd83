"""DistilBERT and MPNet against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from families import distilbert, mpnet
from families.tiny_model import build_model
from family_goldens import each_layout, embed_rows, load_family_golden
from folders import IDS, TinyBert, drop_json_keys, edit_json

import arch


@pytest.mark.parametrize(("name", "layout"), each_layout(distilbert.CASES))
def test_every_distilbert_layout_matches_the_reference(check_family, name, layout):
    check_family(name, layout)


@pytest.mark.parametrize(("name", "layout"), each_layout(mpnet.CASES))
def test_every_mpnet_layout_matches_the_reference(check_family, name, layout):
    check_family(name, layout)


def test_num_09_a_family_without_token_types_needs_none(load_family):
    shapes = distilbert.DISTIL.shapes()
    assert not [name for name in shapes if "token_type" in name]
    load_family(distilbert.DISTIL)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("distilbert", ("activation", "pad_token_id", "sinusoidal_pos_embds")),
        ("mpnet", ("hidden_act", "pad_token_id", "relative_attention_num_buckets")),
    ],
)
def test_an_absent_config_key_has_the_librarys_default(tmp_path, driver, name, keys):
    golden = load_family_golden(name)
    folder = build_model(tmp_path, golden.case.spec)
    drop_json_keys(folder / "config.json", *keys)
    rows = golden.case.rows()
    golden.check(embed_rows(arch.load(folder, driver, np.float32), driver, rows))


def test_the_eps_of_distilbert_is_fixed_whatever_the_config_says(tmp_path, driver):
    golden = load_family_golden("distilbert_relu")
    folder = build_model(tmp_path, golden.case.spec)
    edit_json(folder / "config.json", layer_norm_eps=0.5)
    rows = golden.case.rows()
    golden.check(embed_rows(arch.load(folder, driver, np.float32), driver, rows))


@pytest.mark.parametrize("lowers", [True, False])
@pytest.mark.parametrize("name", ["DistilBertTokenizer", "MPNetTokenizer", "MPNetTokenizerFast"])
def test_tokenizer_config_overrules_the_case_of_tokenizer_json(
    folder_of, open_embedder, name, lowers
):
    """As in `transformers`: the file says the one, tokenizer_config.json the other."""
    said = {"tokenizer_class": name, "do_lower_case": lowers}
    spec = TinyBert(cased=lowers, says_case=False, tokenizer_config=said)
    (row,) = open_embedder(folder_of(spec)).tokenize(["Hello"]).encodings
    assert row.input_ids.tolist()[1:-1] == [IDS["hello" if lowers else "Hello"]]
