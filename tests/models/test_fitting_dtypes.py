"""What `dtype: auto` comes to: the driver's first storage type that the family fits in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from families import CASES, FAMILIES

import arch
from arch import ARCHS, CheckpointError
from drivers import NullDriver
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from pipeline.embedder import resolve_dtype
from pipeline.errors import UsageError

HALF_FIRST = SimpleNamespace(name="cuda:0", dtypes=(FLOAT16, BFLOAT16, FLOAT32))
WIDE_FIRST = SimpleNamespace(name="cpu", dtypes=(FLOAT32, BFLOAT16, FLOAT16))


def test_every_family_fits_in_float32():
    assert all(FLOAT32 in family.fits for family in ARCHS.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_is_the_first_type_of_the_driver_that_the_family_fits_in(family_folder, family):
    folder = family_folder(CASES[next(iter(FAMILIES[family]))].spec)
    wanted = BFLOAT16 if family == "qwen3" else FLOAT16
    assert resolve_dtype("auto", HALF_FIRST, folder) == wanted
    assert resolve_dtype("auto", WIDE_FIRST, folder) == FLOAT32
    assert resolve_dtype("float16", HALF_FIRST, folder) == FLOAT16


def test_a_type_that_was_asked_for_is_taken_or_refused(family_folder):
    folder = family_folder(CASES[next(iter(FAMILIES["qwen3"]))].spec)
    with pytest.raises(UsageError, match="driver 'cuda:0' has no dtype 'int8', have auto, float16"):
        resolve_dtype("int8", HALF_FIRST, folder)


def test_a_folder_that_is_damaged_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="config.json"):
        resolve_dtype("auto", HALF_FIRST, tmp_path)


def test_shapes_can_be_planned_in_every_type_that_a_driver_may_have(family_folder):
    folder = family_folder(CASES[next(iter(FAMILIES["qwen3"]))].spec)
    for dtype in HALF_FIRST.dtypes:
        assert arch.load(folder, NullDriver(), dtype).dtype == np.dtype(dtype)
