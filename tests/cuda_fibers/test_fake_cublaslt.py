"""The stand-in for libcublasLt refuses what the library refuses, and has a reason."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

from drivers.cuda.cublaslt import Algorithm, CublasLt, CublasLtError, Epilogue, Matrix
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tests.cuda_fibers.fake_cublaslt import (
    EXECUTION_FAILED,
    INVALID_VALUE,
    NOT_SUPPORTED,
    FakeCublasLt,
)
from tests.cuda_fibers.host_memory import guarded

ROWS, COLS, TERMS = 4, 6, 8
FITTING = {
    "a": Matrix(FLOAT16, ROWS, TERMS),
    "b": Matrix(FLOAT16, TERMS, COLS),
    "c": Matrix(FLOAT16, ROWS, COLS),
    "d": Matrix(FLOAT16, ROWS, COLS),
}


@pytest.fixture
def fake():
    return FakeCublasLt()


@pytest.fixture
def lt(fake):
    return CublasLt(fake)


def product(lt, *, epilogue=Epilogue.NONE, bias=None, **changed):
    """An operation, its layouts and the algorithm for it."""
    operation = lt.operation(transpose_a=False, epilogue=epilogue)
    if bias is not None:
        lt.set_bias(operation, bias)
    layouts = tuple(map(lt.layout, (FITTING | changed).values()))
    return operation, layouts, lt.choose(operation, layouts, 2, 2**20)


def run(lt, planned, addresses, workspace=(0x1000, 2**20), beta=0.0):
    operation, layouts, algorithm = planned
    lt.matmul(operation, addresses, layouts, beta, algorithm, *workspace, 0)


def tensors(dtype=FLOAT16):
    sizes = [(TERMS, ROWS), (COLS, TERMS), (COLS, ROWS), (COLS, ROWS)]  # rows are its columns
    return [guarded(size, dtype) for size in sizes]


def test_what_fits_is_computed(lt, fake):
    a, b, c, d = tensors()
    for number, tensor in enumerate((a, b, c), 1):
        tensor[...] = number
    run(lt, product(lt), [x.ctypes.data for x in (a, b, c, d)], beta=1.0)
    assert (d == TERMS * 1 * 2 + 3).all()
    assert fake.refusals == []


@pytest.mark.parametrize(
    ("changed", "status", "why"),
    [
        (
            {"b": replace(FITTING["b"], rows=TERMS + 1)},
            INVALID_VALUE,
            r"op\(A\) is \(4, 8\), op\(B",
        ),
        ({"d": replace(FITTING["d"], cols=COLS + 1)}, INVALID_VALUE, "D is .*wanted"),
        ({"b": replace(FITTING["b"], cols=0)}, INVALID_VALUE, "B is empty"),
        ({"a": replace(FITTING["a"], batch=2, stride=32)}, INVALID_VALUE, "batches of"),
        ({"a": replace(FITTING["a"], dtype=FLOAT32)}, NOT_SUPPORTED, "A and B of types"),
        ({"c": replace(FITTING["c"], dtype=FLOAT32)}, NOT_SUPPORTED, "C and D of types"),
        (
            {
                "c": replace(FITTING["c"], dtype=BFLOAT16),
                "d": replace(FITTING["d"], dtype=BFLOAT16),
            },
            NOT_SUPPORTED,
            "types",
        ),
        ({"epilogue": Epilogue.BIAS}, INVALID_VALUE, "a bias epilogue without a bias"),
        ({"epilogue": Epilogue.BIAS, "bias": 0x1001}, INVALID_VALUE, "not on a boundary"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_status(lt, fake, changed, status, why):
    with pytest.raises(CublasLtError) as caught:
        product(lt, **changed)
    assert caught.value.status == status
    assert re.search(why, fake.refusals[0])


def test_a_call_is_held_to_what_its_algorithm_was_chosen_for(lt, fake):
    addresses = [x.ctypes.data for x in tensors()]
    planned = product(lt)
    other = product(
        lt,
        b=replace(FITTING["b"], cols=5),
        c=replace(FITTING["c"], cols=5),
        d=replace(FITTING["d"], cols=5),
        epilogue=Epilogue.GELU,
    )
    wrong = [
        (planned, [addresses[0] + 1, *addresses[1:]], {}, INVALID_VALUE, "A is at"),
        (planned, [0, *addresses[1:]], {}, INVALID_VALUE, "A is at None"),
        (planned, [*addresses[:3], 0x10], {}, EXECUTION_FAILED, "not all readable"),
        (planned, addresses, {"workspace": (0x1000, 8)}, INVALID_VALUE, "wants 96 bytes, has 8"),
        (planned, addresses, {"workspace": (0x1010, 96)}, INVALID_VALUE, "workspace at 0x1010"),
        ((*planned[:2], other[2]), addresses, {}, INVALID_VALUE, "chosen for"),
        ((*planned[:2], Algorithm()), addresses, {}, INVALID_VALUE, "not chosen here"),
    ]
    for call, places, options, status, why in wrong:
        fake.refusals.clear()
        with pytest.raises(CublasLtError) as caught:
            run(lt, call, places, **options)
        assert caught.value.status == status
        assert re.search(why, fake.refusals[0])
    assert fake.matmuls == []


def test_memory_behind_a_tensor_is_out_of_reach(lt, fake):
    a, b, c, d = tensors()
    with pytest.raises(CublasLtError, match=f"cublasLtMatmul: status {EXECUTION_FAILED}"):
        run(lt, product(lt), [x.ctypes.data for x in (a, b[1:], c, d)])
    assert "not all readable" in fake.refusals[0]
    fake.refusals.clear()
    with pytest.raises(CublasLtError, match=f"status {EXECUTION_FAILED}"):
        run(lt, product(lt), [x.ctypes.data for x in (a, b, c, d[1:])])
    assert np.isnan(d).all()


def test_an_attribute_has_one_size(lt, fake):
    operation = lt.operation(transpose_a=False, epilogue=Epilogue.NONE)
    value = ctypes.c_int64(1)
    status = fake.cublasLtMatmulDescSetAttribute(operation, 3, ctypes.byref(value), 8)
    assert status == INVALID_VALUE
    assert fake.cublasLtMatmulDescSetAttribute(operation, 99, ctypes.byref(value), 8) != 0
    assert fake.cublasLtMatmulPreferenceDestroy(operation) == INVALID_VALUE
