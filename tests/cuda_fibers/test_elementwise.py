"""Sums, activations and gates: every storage type and mixture, and the mistakes that must show."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drivers import DriverError, DtypeError, ShapeError
from tests import oracle
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.device import off_boundary
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, answers_well
from tests.ops.contract import DIVIDES_NOTHING, check_op, nans

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)
ACTS = sorted(oracle.ACTIVATIONS)
FLOAT_STEPS = 18  # those of an activation, the sums around it, and a product
SHAPES = [(5, 64), *DIVIDES_NOTHING]
MIXED = [  # x, bias, residual, out
    (F32, F16, F16, F16),  # residual + norm(x), the norm still in float32
    (F32, BF16, BF16, BF16),
    (F16, F32, F16, F32),
    (BF16, F32, F32, BF16),
    (F16, F16, F32, F16),
    (F32, F32, F32, BF16),
]


@pytest.fixture
def driver():
    """One order: no thread of these kernels waits for another."""
    return fiber_driver("shuffled")


def randoms(rng, *specs):
    """An array for each (shape, dtype)."""
    return [(2 * rng.standard_normal(shape)).astype(kind) for shape, kind in specs]


def summed(x, bias=None, act=None, residual=None):
    """act(x + bias) + residual in float64."""
    want = oracle.wide(x) + (0 if bias is None else oracle.wide(bias))
    want = want if act is None else oracle.ACTIVATIONS[act](want)
    return want + (0 if residual is None else oracle.wide(residual))


def budget_of(want, dtype, *others):
    """`others`: what the result was added up from, or multiplied with."""
    scale = max(1.0, *(float(np.abs(oracle.wide(x)).max(initial=0)) for x in (want, *others)))
    return oracle.error_budget(want, dtype, terms=FLOAT_STEPS, scale=scale)


# ---- storage types


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ["add_bias", "residual_add", "fused_bias_residual"])
def test_sums_of_bfloat16(driver, rng, op, shape):
    parts = {"add_bias": [shape[1:]], "residual_add": [shape]}.get(op, [shape[1:], shape])
    inputs = randoms(rng, *((part, BF16) for part in [shape, *parts]))
    want = sum(oracle.wide(x) for x in inputs)
    check_op(driver, op, inputs, want, budget_of(want, BF16, *inputs), dtype=BF16, may_alias=[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("act", ACTS)
def test_activations_and_gates_of_bfloat16(driver, rng, act, shape):
    (x,) = randoms(rng, (shape, BF16))
    want = oracle.ACTIVATIONS[act](x)
    check_op(driver, "activate", [x], want, budget_of(want, BF16), dtype=BF16, act=act)
    (pair,) = randoms(rng, ((shape[0], 2 * shape[1]), BF16))
    first, second = np.split(pair, 2, axis=1)
    want = oracle.gated(first, second, act)
    budget = budget_of(want, BF16, second)
    check_op(driver, "fused_split_gate", [pair], want, budget, dtype=BF16, act=act)


@pytest.mark.parametrize("shape", [(3, 40), (7, 31), (1, 1025)])
@pytest.mark.parametrize("kinds", MIXED, ids=lambda kinds: "-".join(map(str, kinds)))
def test_a_sum_of_mixed_storage_is_rounded_once(driver, rng, kinds, shape):
    x, bias, residual = randoms(rng, *zip((shape, shape[1:], shape), kinds))
    calls = {
        "add_bias": [x, bias],
        "residual_add": [x, residual],
        "fused_bias_residual": [x, bias, residual],
    }
    for op, inputs in calls.items():
        want = sum(oracle.wide(value) for value in inputs)
        out = nans(driver, shape, kinds[3])
        got = getattr(driver, op)(*map(driver.from_host, inputs), out=out)
        assert got is out
        assert oracle.max_error(driver, got, want) <= budget_of(want, kinds[3], *inputs)


@pytest.mark.parametrize("shape", [(3, 40), (7, 31)])
@pytest.mark.parametrize("kinds", MIXED, ids=lambda kinds: "-".join(map(str, kinds)))
def test_a_gate_of_mixed_storage_is_rounded_once(driver, rng, kinds, shape):
    value, gate = randoms(rng, (shape, kinds[0]), (shape, kinds[2]))
    for op, first, second, act in (("geglu", value, gate, "gelu"), ("swiglu", gate, value, "silu")):
        want = oracle.gated(first, second, act)
        out = nans(driver, shape, kinds[3])
        got = getattr(driver, op)(*map(driver.from_host, (value, gate)), out=out)
        assert oracle.max_error(driver, got, want) <= budget_of(want, kinds[3], second)
    (pair,) = randoms(rng, ((shape[0], 2 * shape[1]), kinds[0]))
    halves = tuple(nans(driver, shape, kind) for kind in (kinds[2], kinds[3]))
    driver.split_gate_value(driver.from_host(pair), out=halves)
    for half, want in zip(halves, np.split(pair, 2, axis=1)):
        assert np.array_equal(driver.to_host(half), want.astype(half.dtype))


def test_float16_beside_bfloat16_is_refused(driver):
    x, other = driver.alloc_zeros((2, 8), F16), driver.alloc_zeros((2, 8), BF16)
    launches = driver.launches_total
    for op in ("residual_add", "geglu", "swiglu"):
        with pytest.raises(DtypeError, match=f"{op}: got dtypes bfloat16 and float16"):
            getattr(driver, op)(x, other)
    with pytest.raises(DtypeError, match="activate: got dtypes bfloat16 and float16"):
        driver.activate(x, "gelu", out=other)
    assert driver.launches_total == launches


# ---- what follows a product


@pytest.mark.parametrize("shape", [(3, 64), (7, 31)])
@pytest.mark.parametrize("act", [None, *ACTS])
@pytest.mark.parametrize("kind", [F32, F16, BF16], ids=str)
def test_bias_activation_and_residual_in_one_pass(driver, rng, kind, act, shape):
    x, bias, residual = randoms(rng, (shape, kind), (shape[1:], kind), (shape, kind))
    for options in ({"bias": bias}, {"residual": residual}, {"bias": bias, "residual": residual}):
        want = summed(x, act=act, **options)
        tensors = {name: driver.from_host(value) for name, value in options.items()}
        out = driver.from_host(x)
        launches = driver.launches_total
        assert driver._elementwise("linear", out, act=act, out=out, **tensors) is out
        assert driver.launches_total == launches + 1
        assert oracle.max_error(driver, out, want) <= budget_of(want, kind, *options.values())


@pytest.mark.parametrize("shape", [(3, 64), (7, 31), (1, 1023), (2, 5, 24)])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", [F32, F16, BF16], ids=str)
def test_the_gate_of_gated_linear_adds_its_bias_to_both_halves(driver, rng, kind, act, shape):
    width = 2 * shape[-1]
    x, bias = randoms(rng, ((*shape[:-1], width), kind), ((width,), kind))
    first, second = np.split(oracle.wide(x) + oracle.wide(bias), 2, axis=-1)
    want = oracle.gated(first, second, act)
    out = nans(driver, shape, kind)
    got = driver._gate_rows(driver.from_host(x), driver.from_host(bias), act, out)
    assert got is out
    assert oracle.max_error(driver, got, want) <= budget_of(want, kind, second)
    plain = driver._gate_rows(driver.from_host(x), None, act)
    same = driver.fused_split_gate(driver.from_host(x), act)
    assert np.array_equal(driver.to_host(plain), driver.to_host(same))


def test_the_gate_of_gated_linear_refuses_what_does_not_fit(driver):
    x = driver.alloc_zeros((3, 8))
    with pytest.raises(ShapeError, match=r"gated_linear: bias has shape \(4,\), wanted \(8\)"):
        driver._gate_rows(x, driver.alloc_zeros((4,)), "silu")
    with pytest.raises(DriverError, match="gated_linear: unknown activation 'swish'"):
        driver._gate_rows(x, None, "swish")
    with pytest.raises(ShapeError, match=r"gated_linear: out has shape \(3, 8\)"):
        driver._gate_rows(x, None, "silu", driver.alloc_zeros((3, 8)))
    assert driver._gate_rows(driver.alloc_zeros((0, 8)), None, "silu").shape == (0, 4)


# ---- ends, places, orders


@pytest.mark.parametrize("kind", [F32, F16, BF16], ids=str)
def test_activations_at_infinity(driver, kind):
    x = driver.from_host(np.array([[np.inf, -np.inf, np.nan]], kind))
    wanted = {"gelu": [np.inf, 0], "relu": [np.inf, 0], "tanh": [1, -1]}
    for act, want in wanted.items():
        got = driver.to_host(driver.activate(x, act))[0]
        assert got[:2].tolist() == want, act
        assert np.isnan(got[2])


@pytest.mark.parametrize("kind", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("act", [None, *ACTS])
def test_16_bytes_at_a_time_and_one_by_one_give_the_same_bits(driver, rng, kind, act):
    shape = (5, 64)
    inputs = randoms(rng, (shape, kind), (shape[1:], kind), (shape, kind))
    aligned = [driver.from_host(value) for value in inputs]
    apart = [off_boundary(driver.device, value) for value in inputs]
    assert all(x.ctypes.data % 16 == 0 for x in aligned)

    def run(x, bias, residual):
        got = driver._elementwise("linear", x, bias=bias, act=act, residual=residual)
        gated = None if act is None else driver._gate_rows(x, bias, act)
        return [driver.to_host(y) for y in (got, gated) if y is not None]

    for fast, slow in zip(run(*aligned), run(*apart)):
        assert np.array_equal(fast, slow)


def test_a_row_has_the_same_bits_in_any_batch(driver, rng, dtype):
    x, bias = randoms(rng, ((7, 62), dtype), ((62,), dtype))
    together = [
        driver.to_host(driver.fused_bias_gelu(driver.from_host(x), driver.from_host(bias))),
        driver.to_host(driver._gate_rows(driver.from_host(x), driver.from_host(bias), "silu")),
    ]
    for number, row in enumerate(x):
        row = driver.from_host(row[None])
        alone = [
            driver.to_host(driver.fused_bias_gelu(row, driver.from_host(bias))),
            driver.to_host(driver._gate_rows(row, driver.from_host(bias), "silu")),
        ]
        for one, all_of_them in zip(alone, together):
            assert np.array_equal(one[0], all_of_them[number])


def test_the_order_of_the_threads_changes_no_bit(rng, dtype):
    x, bias, residual = randoms(rng, ((33, 62), dtype), ((62,), dtype), ((33, 62), dtype))
    answers = []
    for order in ORDERS:
        driver = fiber_driver(order)
        tensors = [driver.from_host(value) for value in (x, bias, residual)]
        summed_up = driver._elementwise(
            "linear", tensors[0], bias=tensors[1], act="gelu", residual=tensors[2], out=tensors[2]
        )
        halves = driver.split_gate_value(tensors[0])
        gated = driver.geglu(*halves, out=halves[1])
        answers.append([driver.to_host(y) for y in (summed_up, halves[0], gated)])
    for answer in answers[1:]:
        assert all(np.array_equal(got, want) for got, want in zip(answer, answers[0]))


def test_nothing_is_launched_for_nothing(driver):
    empty, bias = driver.alloc_zeros((0, 8)), driver.from_host(np.zeros(8, F32))
    wide = driver.alloc_zeros((3, 0))
    driver.fused_bias_residual(empty, bias, empty)
    driver.activate(wide, "gelu")
    driver.split_gate_value(empty)
    driver._gate_rows(wide, driver.alloc_zeros((0,)), "gelu")
    driver.geglu(empty, empty)
    assert driver.launches_total == 0


# ---- planted mistakes: a place in the source, what to write there


def planted(theme, before, after, kernel, until=None):
    """A driver with one place of one kernel changed.

    Only optimised code loads 16 bytes by an instruction that fails off their boundary.
    """
    edit = Edit(theme, before, after, until=until, only=(kernel,), level="-O1")
    return fiber_driver("shuffled", edit)


def sum_is_right(driver, rng):
    """Whether rows that end short, and mixed storage, come out well."""
    inputs = randoms(rng, ((5, 31), F32), ((31,), F16), ((5, 31), F16))
    want = sum(oracle.wide(value) for value in inputs)
    out = nans(driver, want.shape, F16)

    def answer():
        got = driver.fused_bias_residual(*map(driver.from_host, inputs), out=out)
        return oracle.max_error(driver, got, want) <= budget_of(want, F16, *inputs)

    return answers_well(answer)


SUMS = {
    "the bias of the first column": ("bias_wide, place.column, ", "bias_wide, 0, "),
    "the residual read as x is": (
        "read_chunk(residual, residual_wide", "read_chunk(residual, x_wide",
    ),
    "the result stored as x is": ("round_chunk(values, out_wide)", "round_chunk(values, x_wide)"),
    "no residual": ("if (residual) {\n        widen_chunk", "if (false) {\n        widen_chunk"),
    "the bias widened as x is": (
        "widen_chunk(added, bias_chunk, bias_wide)", "widen_chunk(added, bias_chunk, x_wide)",
    ),
    "every chunk whole": ("left < CHUNK ? (int)left : CHUNK}", "CHUNK}"),
    "rows that overlap": ("place.row * cols +", "place.row * (cols - 1) +"),
    "16 bytes from anywhere": (
        "if (count == CHUNK && on_16_bytes(from)) {", "if (count == CHUNK) {",
    ),
    "16 bytes to anywhere": ("if (count == CHUNK && on_16_bytes(to)) {", "if (count == CHUNK) {"),
    "no end of the rows": ("row >= rows ? 0 :", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_a_planted_mistake_in_a_sum_shows(driver, rng, name):
    assert sum_is_right(driver, rng)
    until = "ELEMENTWISE(gelu, GELU)"
    assert not sum_is_right(planted("elementwise", *SUMS[name], "elementwise_sum", until), rng)


def gelu_is_right(driver):
    """gelu(x + 1/2) over its range, and at its ends."""
    x = np.concatenate([np.linspace(-6, 6, 61), [np.inf, np.nan, -np.inf]]).astype(F32)
    want = np.concatenate([oracle.gelu(x[:61] + 0.5), [np.inf, np.nan, 0]])
    bias = driver.from_host(np.full(1, 0.5, F32))
    got = driver.to_host(driver.fused_bias_gelu(driver.from_host(x[:, None]), bias))[:, 0]
    ends = np.array_equal(got[61:], want[61:], equal_nan=True)
    return ends and oracle.max_difference(got[:61], want[:61]) <= budget_of(want[:61], F32)


ACTIVATIONS = {
    "the tanh form": ("ELEMENTWISE(gelu, GELU)", "ELEMENTWISE(gelu, GELU_TANH)"),
    "a lost NaN": ("return x < 0.0f ? 0.0f : x;", "return fmaxf(x, 0.0f);"),
    "infinity times zero": ("fminf(fabsf(x), 40.0f)", "fabsf(x)"),
    "a term of the fit too few": ("int k = LAST - 1; k >= 0", "int k = LAST - 1; k > 0"),
    "activated before the bias": (
        "values[i] = activation<ACTIVATION>(values[i]);",
        "values[i] = activation<ACTIVATION>(values[i] - added[i]) + added[i];",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_planted_mistake_in_gelu_shows(driver, name):
    assert gelu_is_right(driver)
    until = "ELEMENTWISE(gelu_tanh, GELU_TANH)"
    mutant = planted("elementwise", *ACTIVATIONS[name], "elementwise_gelu", until)
    assert not gelu_is_right(mutant)


def gate_is_right(driver, rng):
    """act(first) * second with a bias, of float32 into float16."""
    x, bias = randoms(rng, ((5, 62), F32), ((62,), F32))
    first, second = np.split(oracle.wide(x) + oracle.wide(bias), 2, axis=1)
    want = oracle.gated(first, second, "gelu")
    out = nans(driver, want.shape, F16)
    got = driver._gate_rows(driver.from_host(x), driver.from_host(bias), "gelu", out)
    return oracle.max_error(driver, got, want) <= budget_of(want, F16, second)


GATES = {
    "the other half activated": (
        "other[i] *= activation<ACTIVATION>(activated[i])",
        "other[i] = activation<ACTIVATION>(other[i]) * activated[i]",
    ),
    "the first half's bias twice": ("bias_wide, cols + place.column", "bias_wide, place.column"),
    "halves half as far apart": ("place.row * stride", "place.row * cols"),
    "the result stored as x is": ("round_chunk(other, out_wide)", "round_chunk(other, first_wide)"),
}  # fmt: skip


@pytest.mark.parametrize("name", GATES)
def test_a_planted_mistake_in_a_gate_shows(driver, rng, name):
    assert gate_is_right(driver, rng)
    until = "GATE(gelu_tanh, GELU_TANH)"
    assert not gate_is_right(planted("gates", *GATES[name], "gate_gelu", until), rng)


def split_is_right(driver, rng):
    """Both halves of float32 rows, as float16."""
    (x,) = randoms(rng, ((5, 62), F32))
    halves = driver.split_gate_value(
        driver.from_host(x), out=tuple(nans(driver, (5, 31), F16) for _ in range(2))
    )
    wanted = np.split(x.astype(F16), 2, axis=1)
    return all(np.array_equal(driver.to_host(half), want) for half, want in zip(halves, wanted))


SPLITS = {
    "the first half twice": ("read_chunk(x, x_wide, from + cols", "read_chunk(x, x_wide, from"),
    "rows half as far apart": ("place.row * 2 * cols", "place.row * cols"),
    "not converted": ("first_chunk, x_wide);", "first_chunk, first_wide);"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_a_planted_mistake_in_the_split_of_a_gate_shows(driver, rng, name):
    assert split_is_right(driver, rng)
    assert not split_is_right(planted("gates", *SPLITS[name], "split_halves"), rng)
