"""What holds for every family beside BERT: its golden, the null driver, float16, batch-mates."""

from __future__ import annotations

import numpy as np
import pytest
from families import CASES, FAMILIES
from families.tiny_model import rows_hash, weights_hash
from family_goldens import LARGEST_DIFFERENCE, embed_rows, families_json, load_family_golden
from goldens import largest, smallest_cosine

import arch
from arch import ARCHS
from drivers import open_driver
from drivers.errors import ShapeError
from drivers.types import Encoding

FIRST = {family: next(iter(cases)) for family, cases in FAMILIES.items()}


@pytest.mark.parametrize("name", CASES)
def test_weights_and_rows_built_here_are_those_the_golden_was_made_from(name):
    golden = load_family_golden(name)
    assert weights_hash(golden.case.spec) == golden.notes["weights_sha256"]
    assert rows_hash(golden.case) == golden.notes["rows_sha256"]
    assert tuple(golden.notes["modes"]) == golden.case.spec.modes


@pytest.mark.parametrize("name", CASES)
def test_the_reference_proved_every_spelling_and_is_itself_exact_enough(name):
    golden = load_family_golden(name)
    assert set(golden.notes["spellings"]) == set(golden.case.spellings())
    assert golden.notes["float64_difference"] < LARGEST_DIFFERENCE


def test_every_golden_belongs_to_a_case_and_records_its_versions():
    said = families_json()
    assert set(said["cases"]) == set(CASES)
    assert {"torch", "transformers"} <= set(said["versions"])


def test_every_model_type_that_loads_has_a_golden():
    types = {case.spec.config(case.spellings()[0])["model_type"] for case in CASES.values()}
    assert types | {"bert"} == set(ARCHS)


def test_every_family_has_heads_from_16_to_128_wide():
    for family, cases in FAMILIES.items():
        specs = [case.spec for case in cases.values()]
        widths = {getattr(spec, "head_dim", spec.hidden // spec.heads) for spec in specs}
        assert {16, 32, 64, 128} <= widths, family


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shape_only_driver_gives_the_right_shape(family_folder, family):
    spec = CASES[FIRST[family]].spec
    driver = open_driver("null")
    model = arch.load(family_folder(spec), driver, np.float32)
    vectors = model.forward(driver, [Encoding(row) for row in spec.rows((1, 7, 130))])
    assert vectors.shape == (3, len(spec.modes) * spec.hidden)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("name", [*FIRST.values(), "nomic_dynamic", "xlm_roberta_few_rows"])
@pytest.mark.parametrize("driver_name", ["null", "numpy"])
def test_num_10_a_row_beyond_the_positions_is_refused_and_never_indexed(
    family_folder, name, driver_name
):
    spec, driver = CASES[name].spec, open_driver(driver_name)
    model = arch.load(family_folder(spec), driver, np.float32)
    limit = model.max_tokens
    rows = [Encoding(row) for row in spec.rows((3, limit + 1))]
    with pytest.raises(ShapeError, match=f"row 1 has {limit + 1} tokens, wanted 1 to {limit}$"):
        model.forward(driver, rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_options_of_load_change_pooling_norm_and_width(driver, load_family, family):
    golden = load_family_golden(FIRST[family])
    spec = golden.case.spec
    rows = spec.rows(golden.case.lengths[:3])
    mean = np.split(golden.right[:3], len(spec.modes), axis=1)[spec.modes.index("mean")]
    plain = load_family(spec, pooling="mean")
    assert plain.dim == spec.hidden
    assert largest(embed_rows(plain, driver, rows), mean) < LARGEST_DIFFERENCE
    cut = load_family(spec, pooling="mean", normalize=True, dim=5)
    want = mean[:, :5] / np.linalg.norm(mean[:, :5], axis=1, keepdims=True)
    assert largest(embed_rows(cut, driver, rows), want) < LARGEST_DIFFERENCE


@pytest.mark.parametrize("family", FAMILIES)
def test_float16_storage_stays_near_the_reference(driver, family_folder, family):
    golden = load_family_golden(FIRST[family])
    spec, count = golden.case.spec, 8
    model = arch.load(family_folder(spec), driver, np.float16)
    vectors = embed_rows(model, driver, golden.case.rows()[:count])
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    for got, want in zip(*(np.split(v, len(spec.modes), 1) for v in (vectors, golden.right))):
        assert smallest_cosine(got, want[:count]) > 0.999


@pytest.mark.parametrize("family", FAMILIES)
def test_num_08_a_row_is_the_same_alone_and_among_others(driver, load_family, family):
    golden = load_family_golden(FIRST[family])
    spec = golden.case.spec
    model = load_family(spec)
    rows = spec.rows((2, 130, 7, 66, 1))
    together = model.forward(driver, [Encoding(row) for row in rows])
    alone = np.concatenate([model.forward(driver, [Encoding(row)]) for row in rows])
    assert largest(together, alone) < 1e-5
