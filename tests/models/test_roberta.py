"""RoBERTa, XLM-RoBERTa and CamemBERT against the reference: NUM-10."""

from __future__ import annotations

import numpy as np
import pytest
from families.roberta import CASES, FEW_ROWS, ROBERTA
from families.tiny_model import END_ID, build_model
from family_goldens import LARGEST_DIFFERENCE, each_layout, embed_rows, load_family_golden
from folders import drop_json_keys
from goldens import largest

import arch
from pipeline.errors import UsageError

LIMIT = FEW_ROWS.position_rows - FEW_ROWS.pad - 1


@pytest.mark.parametrize(("name", "layout"), each_layout(CASES))
def test_every_layout_matches_the_reference(check_family, name, layout):
    check_family(name, layout)


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta", "camembert", "xlm_roberta_pad_0"])
def test_num_10_pad_ids_inside_a_text_do_not_advance_the_counter(driver, load_family, name):
    golden = load_family_golden(name)
    spec, extra = golden.case.spec, golden.case.extra_rows
    assert any(spec.pad in row[1:-1] for row in extra)
    rows = [np.array(row, dtype=np.int32) for row in extra]
    got = embed_rows(load_family(spec), driver, rows)
    right, wrong = golden.right[-len(rows) :], golden.wrong["pads_counted"][-len(rows) :]
    assert largest(got, right) < LARGEST_DIFFERENCE
    for row, near, far in zip(rows, right, wrong):
        assert (largest(near, far) > 0.1) == (spec.pad in row)


def test_num_10_positions_start_after_the_pad_id_and_fill_the_table(driver, load_family):
    golden = load_family_golden("xlm_roberta_few_rows")
    model = load_family(FEW_ROWS)
    assert model.max_tokens == LIMIT == 32
    assert {20, LIMIT} <= set(golden.case.lengths)
    golden.check(embed_rows(model, driver, golden.case.rows()))


@pytest.mark.parametrize("words", [LIMIT - 1, LIMIT, 60])
def test_num_10_a_text_beyond_the_table_is_cut_and_keeps_its_end(
    family_folder, open_embedder, words
):
    embedder = open_embedder(family_folder(FEW_ROWS))
    assert embedder.max_seq_len == LIMIT
    text = " ".join(f"w{10 + i % 50}" for i in range(words))
    tokenized = embedder.tokenize([text])
    (row,) = tokenized.encodings
    assert len(row) == LIMIT
    assert row.input_ids[-1] == END_ID
    assert tokenized.truncated.tolist() == [words >= LIMIT]
    cut = " ".join(text.split()[: LIMIT - 1])
    np.testing.assert_array_equal(embedder.encode([text]), embedder.encode([cut]))


def test_num_10_a_limit_beyond_the_table_is_refused(family_folder, open_embedder):
    with pytest.raises(UsageError, match=r"max_seq_len is 33, wanted 1 to 32"):
        open_embedder(family_folder(FEW_ROWS), max_seq_len=33)


def test_an_absent_pad_id_is_the_librarys_default(tmp_path, driver):
    golden = load_family_golden("roberta")
    assert ROBERTA.pad == 1
    folder = build_model(tmp_path, ROBERTA)
    drop_json_keys(folder / "config.json", "pad_token_id")
    rows = golden.case.rows()
    golden.check(embed_rows(arch.load(folder, driver, np.float32), driver, rows))
