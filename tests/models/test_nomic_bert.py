"""Nomic BERT against the reference: spellings, rotary bases that grow with a row, padded sizes."""

from __future__ import annotations

import numpy as np
import pytest
from families.nomic_bert import CASES, PLAIN
from families.tiny_model import build_model
from family_goldens import LARGEST_DIFFERENCE, each_layout, embed_rows, load_family_golden
from folders import drop_json_keys, edit_json
from goldens import largest

import arch
from drivers.types import Encoding


@pytest.mark.parametrize(("name", "layout"), each_layout(CASES))
def test_every_layout_matches_the_reference(check_family, name, layout):
    check_family(name, layout)


def test_every_spelling_gives_identical_vectors(driver, load_family):
    rows = PLAIN.rows((1, 7, 66, 130))
    first, *others = (
        embed_rows(load_family(PLAIN, layout), driver, rows) for layout in PLAIN.layouts
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_num_09_the_type_row_is_added_where_there_is_one(check_family):
    golden = check_family("nomic_plain", "hub")
    assert largest(golden.wrong["no_type_row"], golden.right[golden.case.wrong_rows()]) > 1


@pytest.mark.parametrize("name", ["nomic_dynamic", "nomic_dynamic_partial"])
def test_a_row_has_the_base_of_its_own_length_whatever_else_is_in_the_batch(
    driver, load_family, name
):
    golden = load_family_golden(name)
    model, rows = load_family(golden.case.spec, "hub"), golden.case.rows()
    together = model.forward(driver, [Encoding(row) for row in rows])
    assert largest(together, golden.right) < LARGEST_DIFFERENCE
    for row, right in list(zip(rows, golden.right))[3:7]:
        assert len(row) in (63, 64, 65, 66)
        alone = model.forward(driver, [Encoding(row)])
        assert largest(alone, right[None]) < LARGEST_DIFFERENCE
    backwards = model.forward(driver, [Encoding(row) for row in reversed(rows)])
    assert largest(backwards[::-1], golden.right) < LARGEST_DIFFERENCE


def test_the_base_grows_only_beyond_the_trained_length(driver, load_family):
    golden = load_family_golden("nomic_dynamic")
    trained = golden.case.spec.trained
    picked = [golden.case.wrong_rows()[i] for i in range(4)]
    lengths = [golden.case.lengths[i] for i in picked]
    apart = np.abs(golden.wrong["not_scaled"] - golden.right[picked]).max(axis=1)
    assert [length > trained for length in lengths] == (apart > 1e-3).tolist()


def test_rotary_scaling_that_is_null_or_absent_scales_nothing(tmp_path, driver):
    golden = load_family_golden("nomic_plain")
    folder = build_model(tmp_path, golden.case.spec, "hub")
    rows = golden.case.rows()[:11]
    drop_json_keys(folder / "config.json", "rotary_scaling_factor", "max_trained_positions")
    golden.check(embed_rows(arch.load(folder, driver, np.float32), driver, rows), range(11))


def test_a_null_inner_size_is_four_times_the_hidden_size(tmp_path, driver, load_family):
    spec = CASES["nomic_padded_sizes"].spec
    assert spec.intermediate == 4 * spec.hidden
    folder = build_model(tmp_path, spec, "hub")
    edit_json(folder / "config.json", n_inner=None)
    golden = load_family_golden("nomic_padded_sizes")
    rows = golden.case.rows()
    golden.check(embed_rows(arch.load(folder, driver, np.float32), driver, rows))
