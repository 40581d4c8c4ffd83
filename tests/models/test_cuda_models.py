"""Whole models on the CUDA driver, its kernels run on fibers: the goldens, and half precision."""

from __future__ import annotations

import numpy as np
import pytest
from families import CASES, FAMILIES
from family_goldens import embed_rows, load_family_golden
from goldens import largest

import arch
from drivers import Encoding, NumpyDriver, gpus_of
from drivers.dtypes import BFLOAT16, FLOAT16
from tests.conftest import NAMED, opened
from tests.cuda_fibers.cuda_driver import cuda_driver

pytestmark = pytest.mark.slow

FIRST = {family: next(iter(cases)) for family, cases in FAMILIES.items()}
ROUNDING = {FLOAT16: 2**-11, BFLOAT16: 2**-8}
LONGEST = 70  # tokens of a row: beyond a tile of keys, and quick


@pytest.fixture(scope="module", params=[name for name in NAMED if gpus_of(name)] or ["fibers"])
def cuda(request):
    return cuda_driver() if request.param == "fibers" else opened(request.param)


@pytest.fixture
def driver(cuda):
    """For the fixtures of this folder."""
    return cuda


def short_rows(golden):
    """Numbers of the rows that are run, some of those with wrong variants among them."""
    return [i for i, row in enumerate(golden.case.rows()) if len(row) <= LONGEST]


@pytest.mark.parametrize("name", CASES)
def test_a_golden_in_float32(cuda, load_family, name):
    golden = load_family_golden(name)
    picked, rows = short_rows(golden), golden.case.rows()
    model = load_family(golden.case.spec, golden.case.spellings()[0])
    launched = cuda.launches_total
    golden.check(embed_rows(model, cuda, [rows[i] for i in picked]), picked)
    assert cuda.launches_total > launched


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, FLOAT16) for name in CASES), *((name, BFLOAT16) for name in FIRST.values())],
)
def test_half_precision_errs_as_numpys_float16_does(cuda, family_folder, name, dtype):
    """bfloat16 by as much more as it rounds more coarsely."""
    golden = load_family_golden(name)
    picked = short_rows(golden)
    rows, want = [golden.case.rows()[i] for i in picked], golden.right[picked]
    folder = family_folder(golden.case.spec, golden.case.spellings()[0])
    errors = []
    for driver, storage in ((cuda, dtype), (NumpyDriver(), FLOAT16)):
        model = arch.load(folder, driver, storage)
        assert model.dtype == storage
        vectors = embed_rows(model, driver, rows)
        assert vectors.dtype == np.float32
        errors.append(largest(vectors, want))
    assert errors[0] <= 2 * errors[1] * ROUNDING[dtype] / ROUNDING[FLOAT16]


@pytest.mark.parametrize("dtype", [np.float32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_the_same_alone_and_among_others(cuda, family_folder, family, dtype):
    spec = load_family_golden(FIRST[family]).case.spec
    model = arch.load(family_folder(spec), cuda, dtype)
    rows = [Encoding(row) for row in spec.rows((2, 65, 7, 33, 1))]
    together = model.forward(cuda, rows)
    alone = np.concatenate([model.forward(cuda, [row]) for row in rows])
    budget = 1e-5 if dtype == np.float32 else 4 * ROUNDING[dtype] * np.abs(together).max()
    assert largest(together, alone) <= budget


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_after_the_first_allocates_and_builds_nothing(family_folder, family):
    driver = cuda_driver()
    device, fake = driver.device, driver.device._cupy
    spec = load_family_golden(FIRST[family]).case.spec
    model = arch.load(family_folder(spec), driver, FLOAT16)
    rows = [Encoding(row) for row in spec.rows((2, 33, 7, 1))]
    built, answers, allocations = fake.loaded_total, [], []
    for _ in range(4):
        driver.begin_batch()
        answers.append(model.forward(driver, rows))
        driver.end_batch()
        allocations.append(fake.allocations_total)
    assert fake.loaded_total == built
    assert allocations[1] == allocations[3]  # the second made the arena
    assert device.memory.blocks_total == 1
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
