"""What the norm kernels do beyond the contract's tests, and the mistakes that must show."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from drivers.cuda.launches import norms as launches
from drivers.cuda.launches.norm_row import HELD
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.types import NormWeights
from tests import oracle
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.device import off_boundary
from tests.cuda_fibers.engine import ORDERS
from tests.cuda_fibers.planted import Edit, ends, shows

WIDTHS = [8, 64, 256, 264, 768, 1000, 1016, 1280, 2048, 2056, 3064, 4096, 4104, 31]
KINDS = ["layer", "layer without bias", "rms"]
STORED = [FLOAT32, FLOAT16, BFLOAT16]
EPS = 1e-5


@pytest.fixture
def driver():
    """No kernel here has a barrier: one order will do, and one test takes all."""
    return fiber_driver("shuffled")


def case(rng, shape, dtype, weights=None):
    """x and residual of the shape, weight and bias of its width."""
    x, residual = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[-1]).astype(weights or dtype) for _ in range(2))
    return x, residual, weight, bias


def expected(x, residual, weight, bias, kind, order):
    """norm(x + residual) or norm(x) + residual in float64, and what float32 may miss it by."""
    y = oracle.wide(x) + (0 if residual is None or order == "sandwich" else oracle.wide(residual))
    if kind == "rms":
        want = oracle.rms_norm(y, weight, eps=EPS)
    else:
        want = oracle.layer_norm(y, weight, bias if kind == "layer" else 0, eps=EPS)
    if order == "sandwich" and residual is not None:
        want = want + oracle.wide(residual)
    scale = float(np.abs(y).max() / y.std(axis=-1).min() * np.abs(oracle.wide(weight)).max())
    return want, oracle.error_budget(want, x.dtype, terms=y.shape[-1] + 6, scale=scale + 4)


def add_norm(driver, x, residual, weight, bias, kind="layer", order="pre"):
    up = driver.from_host
    norm = NormWeights(
        up(weight),
        up(bias) if kind == "layer" else None,
        EPS,
        kind="rms" if kind == "rms" else "layer",
    )
    return driver.add_norm(up(x), None if residual is None else up(residual), norm, order=order)


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_build_in_every_storage_type(driver, rng, dtype, width):
    inputs = case(rng, (5, width), dtype)
    for kind in KINDS:
        for order in ("pre", "sandwich"):
            for given in (inputs, (inputs[0], None, *inputs[2:])):
                before = driver.launches_total
                got = add_norm(driver, *given, kind, order)
                want, budget = expected(*given, kind, order)
                assert driver.launches_total == before + 1
                assert got.dtype == dtype
                assert oracle.max_difference(got, want) <= budget, (kind, order)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_a_row_goes_to_the_narrowest_build_that_holds_it(dtype):
    def kernel(cols, wide=0):
        return launches.norm("norm", rows=5, cols=cols, storage=dtype, wide=wide).kernel

    piece = 16 // dtype.itemsize
    for count in HELD:
        assert kernel(count * 32 * piece) == f"norm_held_{count}"
        assert kernel(count * 32 * piece + piece) != f"norm_held_{count}"
        assert kernel(count * 32 * piece - 1) == "norm_plain"
    assert kernel(piece) == "norm_held_1"
    assert kernel(16 * 32 * piece + piece) == "norm_plain"
    weights = launches.WIDE["WEIGHT"] | launches.WIDE["BIAS"]
    assert kernel(256, weights) != "norm_plain"
    assert kernel(256, weights | launches.WIDE["OUT"]) == "norm_plain"
    assert kernel(256, launches.WIDE["BIAS"]) == "norm_plain"


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (4, 1), (5, 2), (2**33 - 4, 2**31 - 1)])
def test_a_warp_takes_a_row(rows, blocks):
    got = launches.norm("norm", rows=rows, cols=768, storage=FLOAT16, wide=0)
    assert got.grid == (blocks, 1, 1)
    assert got.block == (128, 1, 1)


def test_more_rows_than_a_grid_holds_are_refused():
    with pytest.raises(ShapeError, match="norm: 2147483648 blocks of 4 rows, wanted at most"):
        launches.norm("norm", rows=2**33 - 3, cols=768, storage=FLOAT16, wide=0)


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", [256, 1000, 3064])
def test_held_and_read_again_give_the_same_bits(rng, monkeypatch, dtype, width):
    inputs = case(rng, (5, width), dtype)
    held = add_norm(fiber_driver("shuffled"), *inputs)
    monkeypatch.setattr(launches, "held", lambda *_: None)
    assert held.tobytes() == add_norm(fiber_driver("shuffled"), *inputs).tobytes()


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("width", [31, 768, 4104])
def test_the_order_of_the_threads_changes_no_bit(rng, dtype, width):
    inputs = case(rng, (7, width), dtype)
    answers = [add_norm(fiber_driver(order), *inputs) for order in ORDERS]
    assert all(answer.tobytes() == answers[0].tobytes() for answer in answers)
    units = [fiber_driver(order).l2_normalize(inputs[0]) for order in ORDERS]
    assert all(unit.tobytes() == units[0].tobytes() for unit in units)


@pytest.mark.parametrize("width", [31, 768, 4104])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(driver, rng, dtype, width):
    x, residual, weight, bias = case(rng, (9, width), dtype)
    together = add_norm(driver, x, residual, weight, bias)
    for row in (0, 4, 8):
        one = slice(row, row + 1)
        alone = add_norm(driver, x[one], residual[one], weight, bias)
        assert alone.tobytes() == together[one].tobytes()


@pytest.mark.parametrize("narrow", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("width", [31, 256])
def test_each_tensor_may_be_float32_beside_another_storage_type(driver, rng, narrow, width):
    wide = case(rng, (3, width), np.float32)
    wide = [array.astype(narrow).astype(np.float32) for array in wide]  # what both types hold
    want, budget = expected(*wide, "layer", "pre")
    for choice in range(32):
        *stored, out_type = [(narrow, FLOAT32)[choice >> bit & 1] for bit in range(5)]
        x, residual, weight, bias = (
            driver.from_host(array.astype(kind)) for array, kind in zip(wide, stored)
        )
        out = driver.device.new(x.shape, out_type)
        got = driver.fused_residual_layernorm(x, residual, weight, bias, eps=EPS, out=out)
        assert got is out
        step = 2 * oracle.rounding_error(want, out_type)
        assert oracle.max_difference(got, want) <= budget + step, (stored, out_type)
        unit = driver.l2_normalize(x, out=driver.device.new(x.shape, out_type))
        near = oracle.error_budget(oracle.l2_normalize(wide[0]), out_type, terms=width)
        assert oracle.max_difference(unit, oracle.l2_normalize(wide[0])) <= near


def test_float16_beside_bfloat16_is_refused(driver, rng):
    x, _, weight, bias = case(rng, (3, 8), FLOAT16)
    other = weight.astype(BFLOAT16)
    with pytest.raises(DtypeError, match="layer_norm: got dtypes bfloat16 and float16, wanted one"):
        driver.layer_norm(x, other, bias, eps=EPS)
    with pytest.raises(DtypeError, match="rms_norm: got dtypes bfloat16 and float16, wanted one"):
        driver.rms_norm(x, weight, eps=EPS, out=driver.device.new(x.shape, BFLOAT16))
    assert driver.launches_total == 0


@pytest.mark.parametrize("place", range(5))
def test_a_tensor_off_boundary_is_read_value_by_value(driver, rng, dtype, place):
    inputs = case(rng, (5, 256), dtype)
    tensors = [driver.from_host(array) for array in inputs]
    out = driver.device.new((5, 256), dtype)
    want = driver.fused_residual_layernorm(*tensors, eps=EPS).tobytes()
    if place < 4:
        tensors[place] = off_boundary(driver.device, inputs[place])
    else:
        out = off_boundary(driver.device, np.zeros_like(out))
    assert driver.fused_residual_layernorm(*tensors, eps=EPS, out=out).tobytes() == want


# ---- planted mistakes: a place in the source and what to write there

HELD_MISTAKES = {
    "the mean's rounding left in": (
        "norm.rest = warp_sum(sum) / row.cols;", "norm.rest = 0.0f;", "layer", "constant",
    ),
    "the mean not taken off": ("if (centred) {", "if (false) {", "layer", "random"),
    "the mean taken off an RMS norm": ("if (centred) {", "if (true) {", "rms", "random"),
    "eps outside the root": (
        "1.0f / sqrtf(warp_sum(sum) / row.cols + eps)",
        "1.0f / (sqrtf(warp_sum(sum) / row.cols) + eps)", "rms", "small",
    ),
    "the variance over one column less": (
        "sqrtf(warp_sum(sum) / row.cols + eps)", "sqrtf(warp_sum(sum) / (row.cols - 1) + eps)",
        "layer", "random",
    ),
    "a lane's own sum for the warp's": (
        "norm.mean = warp_sum(sum) / row.cols;", "norm.mean = sum / row.cols;", "layer", "random",
    ),
    "what a lane has not in the sums": ("if (has(i))\n#pragma", "if (true)\n#pragma", "layer",
                                        "random"),
    "the bias left out": ("* by[j] + plus[j]", "* by[j]", "layer", "random"),
    "the residual left out": (
        "if (call.residual && !call.sandwich) row.add(residual);", "", "layer", "random",
    ),
    "the residual in the wrong place": (
        "if (call.residual && !call.sandwich) row.add(residual);",
        "if (call.residual && call.sandwich) row.add(residual);", "layer", "random",
    ),
}  # fmt: skip
ENDED = {
    "rows written behind the last": (
        "if (row >= (size_t)call.rows) return;  // the whole warp", "", "touches memory",
    ),
    "pieces written behind the row": (
        "if (has(i)) store_vector(", "store_vector(", "touches memory",
    ),
    "a weight read behind its end": (
        "if (!row.has(i)) break;  // nor has it the pieces behind", "", "touches memory",
    ),
    "pieces read behind the row": (
        "return min(own_column(piece), cols - VECTOR);", "return own_column(piece);",
        "touches memory",
    ),
    "starts not looked at": (
        "return (... | reinterpret_cast<size_t>(start)) % 16 == 0;", "return true;",
        "reads 16 bytes off their boundary",
    ),
    "a lane that leaves early": (
        "    const size_t start = row * call.cols;\n    const int lane",
        "    if (threadIdx.x == 5) return;\n    const size_t start = row * call.cols;\n"
        "    const int lane",
        "waits for lanes that never come",
    ),
}  # fmt: skip
CUT = {"until": "NORM(norm_held_4, 4)", "only": ("norm_plain", "norm_held_3")}


def rows_of(rng, values):
    """Rows of 65 pieces, which fill neither all lanes nor all the registers."""
    x, residual, weight, bias = case(rng, (5, 260), FLOAT32)
    if values == "constant":
        x[...], residual[...] = rng.uniform(2e4, 6e4, (2, 5, 1))
    if values == "small":
        x, residual = (array * np.float32(1e-3) for array in (x, residual))
    return x, residual, weight, bias


@pytest.mark.parametrize("name", HELD_MISTAKES)
def test_a_planted_mistake_shows(rng, name):
    before, after, kind, values = HELD_MISTAKES[name]
    inputs = rows_of(rng, values)
    if values == "constant":  # no variance: the bias
        want, budget = np.tile(inputs[3], (5, 1)), 2e-3
    else:
        want, budget = expected(*inputs, kind, "pre")

    def error(order, edit=None):
        return oracle.max_difference(add_norm(fiber_driver(order, edit), *inputs, kind), want)

    assert error("warp_greedy") <= budget
    edit = Edit("norms", before, after, **CUT)
    assert shows(lambda order: error(order, edit), 20 * budget, ["warp_greedy"])


@pytest.mark.parametrize("name", ENDED)
def test_a_planted_fault_ends_the_launch_with_a_message(rng, name):
    before, after, message = ENDED[name]
    x, *others = rows_of(rng, "random")

    def run(order):
        driver = fiber_driver(order, Edit("norms", before, after, **CUT))
        rows = off_boundary(driver.device, x) if "starts" in name else x
        driver.fused_residual_layernorm(rows, *map(driver.from_host, others), eps=EPS)

    ends(run, "norm_held_3", message, ["warp_greedy"])
