"""Random calls of the cpu driver's forward operations, on each instruction set, against NumPy's.

Sound or damaged in one place, both give the same result within the float32 budget, NaN in the same
places, or both refuse with the same class of error.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest

from drivers import DriverError, ShapeError, open_driver
from tests.ops.random_calls import random_call
from tests.tiles import TILE_SETS

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = [name for name in rayvec_native.instruction_sets() if name not in TILE_SETS]
CALLS, PARTS = 1500, 4
MANY_CALLS, MANY_PARTS = 10_000, 8


def outcome(driver, call):
    """The result, or the error that stands in its place."""
    with np.errstate(all="ignore"):
        try:
            return call.run(driver, call.arrays)
        except (DriverError, AttributeError, TypeError, ValueError) as error:
            return error


def tokens_of(call, name):
    """(T,) bool: tokens of the sequences that hold a value of qkv which is not finite."""
    sequence = np.repeat(np.arange(len(call.lengths)), call.lengths)
    hit = ~np.isfinite(call.arrays[name]).all(axis=1)
    return np.isin(sequence, sequence[hit])


def check_result(got, want, call, damaged):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    got, want = np.float64(got), np.float64(want)
    if call.op in ("attention", "gated_linear"):  # what is nearly 0 times infinity: either
        got, want = (np.where(np.isfinite(x), x, np.nan) for x in (got, want))
    if call.blurred and damaged == "qkv" and not np.isfinite(call.arrays["qkv"]).all():
        # weight 0 times NaN of a token outside the window
        elsewhere = ~tokens_of(call, "qkv")
        got, want = got[elsewhere], want[elsewhere]
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, want))
    error = np.abs(got[finite] - want[finite]).max(initial=0.0)
    assert error <= call.budget, f"{error} > {call.budget}"


def check_calls(seeds):
    numpy, natives = open_driver("numpy"), [open_driver(f"cpu:{name}") for name in SETS]
    sound = Counter()
    for seed in seeds:
        call, damaged, how = random_call(seed)
        want = outcome(numpy, call)
        said = f"call {seed}: {call.op} {call.notes}, {damaged} {how}"
        sound[call.op] += how == "sound"
        for driver in natives:
            got = outcome(driver, call)
            try:
                check_outcome(got, want, call, damaged, how)
            except AssertionError as error:
                note = f"{driver.name}, {said}: got {got!r}, wanted {want!r}"
                raise AssertionError(f"{note}: {error}") from error
    for driver in natives:
        for op in ("linear", "gated_linear", "add_norm", "embed", "attention"):
            assert driver.native_calls[op] > 0.6 * sound[op], (driver.name, op)


def check_outcome(got, want, call, damaged, how):
    weight = call.arrays[damaged] if damaged in call.weights else None
    if how == "not_finite" and weight is not None and isinstance(got, DriverError):
        assert type(got) is DriverError
        assert str(got) == (
            f"pack: a weight of shape {weight.shape} has values that are not finite"
        )
    elif isinstance(got, ShapeError) and "a gated weight has two halves" in str(got):
        assert len(call.arrays["weight"]) % 2  # numpy sees it later, or not at all
    elif isinstance(got, Exception) or isinstance(want, Exception):
        assert type(got) is type(want)
    else:
        check_result(got, want, call, damaged)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls_do_as_numpy_does(part):
    check_calls(range(part, CALLS, PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(MANY_PARTS))
def test_many_random_calls_do_as_numpy_does(part):
    check_calls(range(CALLS + part, CALLS + MANY_CALLS, MANY_PARTS))
