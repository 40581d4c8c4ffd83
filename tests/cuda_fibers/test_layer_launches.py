"""What products and linear layers launch, what they count, and the types that they mix."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from drivers import DriverError, DtypeError, ShapeError
from drivers.cuda import products
from drivers.cuda.driver import CudaDriver
from tests import oracle
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.device import FiberDevice
from tests.cuda_fibers.fake_cublaslt import DEFAULT
from tests.ops.test_forward_ops import linear_oracle

F16, F32, BF16 = np.float16, np.float32, ml_dtypes.bfloat16
STORAGE = pytest.mark.parametrize("stored", [F32, F16, BF16], ids=["f32", "f16", "bf16"])
ROWS, WIDTH, OUT = 7, 31, 33


@pytest.fixture
def driver():
    return fiber_driver("shuffled")


def layer(driver, rng, stored, rows=ROWS):
    """x, weight, bias and residual of a layer, on the host and on the device."""
    shapes = [(rows, WIDTH), (OUT, WIDTH), (OUT,), (rows, OUT)]
    arrays = [rng.standard_normal(shape).astype(stored) for shape in shapes]
    arrays[1] = (arrays[1].astype(F32) * WIDTH**-0.5).astype(stored)
    return arrays, [driver.from_host(array) for array in arrays]


def counted(driver, run):
    """What came of it, and by how much launches, calls of the library, flops and bytes rose."""

    def counts():
        calls = len(driver.device.fake_cublaslt.matmuls)
        return driver.launches_total, calls, driver.flops_total, driver.activation_bytes_total

    before = counts()
    got = run()
    return got, tuple(after - first for after, first in zip(counts(), before))


# ---- launches, and what they move


@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("act", [None, *sorted(oracle.ACTIVATIONS)])
@STORAGE
def test_a_layer_is_one_launch_and_with_an_activation_two(
    driver, rng, stored, act, with_bias, with_residual
):
    (x, weight, bias, residual), on_device = layer(driver, rng, stored)
    bias, residual = bias if with_bias else None, residual if with_residual else None
    given = {"act": act, "residual": on_device[3] if with_residual else None}
    got, (launches, calls, flops, moved) = counted(
        driver,
        lambda: driver.linear(*on_device[:2], on_device[2] if with_bias else None, **given),
    )
    want, budget = linear_oracle(x, weight, bias, act, residual)
    assert got.dtype == stored
    assert oracle.max_difference(oracle.wide(got), want) <= budget
    in_the_library = act == "gelu_tanh" and stored != F32 and not with_residual
    second = act is not None and not in_the_library
    assert (launches, calls) == (1 + second, 1)
    assert flops == 2 * ROWS * WIDTH * OUT
    written = ROWS * OUT * (1 + 2 * second + with_residual)
    assert moved == (ROWS * WIDTH + written) * np.dtype(stored).itemsize


@STORAGE
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_a_gated_layer_is_two_launches(driver, rng, stored, with_bias):
    x, weight = (rng.standard_normal(s).astype(stored) for s in [(ROWS, WIDTH), (2 * OUT, WIDTH)])
    bias = driver.from_host(rng.standard_normal(2 * OUT).astype(stored)) if with_bias else None
    tensors = [driver.from_host(array) for array in (x, weight)]
    got, (launches, calls, flops, moved) = counted(
        driver, lambda: driver.gated_linear(*tensors, bias, act="silu")
    )
    assert got.shape == (ROWS, OUT)
    assert (launches, calls) == (2, 1)
    assert flops == 2 * ROWS * WIDTH * 2 * OUT
    assert moved == ROWS * (WIDTH + 2 * OUT + 2 * OUT + OUT) * np.dtype(stored).itemsize


def test_a_batched_product_is_one_launch_however_its_groups_are_shared(driver, rng):
    a, b = (driver.from_host(rng.standard_normal(s).astype(F16)) for s in [(6, 7, 31), (2, 31, 5)])
    _, (launches, calls, flops, moved) = counted(driver, lambda: driver.gemm_batched(a, b))
    assert (launches, calls) == (1, 1)
    assert flops == 2 * 6 * 7 * 31 * 5
    assert moved == 2 * (6 * 7 * 31 + 2 * 31 * 5 + 6 * 7 * 5)


def test_a_layer_of_another_batch_makes_no_new_choice(driver, rng):
    fake = driver.device.fake_cublaslt
    x, weight = rng.standard_normal((64, 64)).astype(F32), rng.standard_normal((64, 64)).astype(F32)
    packed = driver.from_host(weight)
    for rows in (33, 64, 40):
        got = driver.linear(driver.from_host(x[:rows]), packed)
        want = oracle.gemm(x[:rows], weight, transpose_b=True)
        assert oracle.max_difference(oracle.wide(got), want) <= 1e-4
    assert fake.heuristics_total == 1


@pytest.mark.parametrize("act", [None, "gelu_tanh"])
def test_a_layer_that_the_library_cannot_fuse_is_a_product_and_a_pass(driver, rng, act):
    driver.device.fake_cublaslt.epilogues = (DEFAULT,)
    (x, weight, bias, _), on_device = layer(driver, rng, F16)
    objects = []
    for number in (1, 2):
        got, (launches, calls, *_) = counted(driver, lambda: driver.linear(*on_device[:3], act=act))
        want, budget = linear_oracle(x, weight, bias, act, None)
        assert oracle.max_difference(oracle.wide(got), want) <= budget
        assert (launches, calls, driver.unfused_total) == (2, 1, number)
        objects.append(len(driver.device.fake_cublaslt.objects))
    assert objects[0] == objects[1]  # no layer is planned twice


# ---- which gelu


@STORAGE
def test_gelu_is_the_erf_form_and_gelu_tanh_the_other(driver, stored):
    """Between -3 and -1.5 they differ by 3e-4, which all storage types show: values are small."""
    x = np.linspace(-3.0, -1.5, 64).reshape(2, 32).astype(stored)
    eye = driver.from_host(np.eye(32).astype(stored))
    zero = driver.from_host(np.zeros(32, stored))
    for right, wrong in (("gelu", "gelu_tanh"), ("gelu_tanh", "gelu")):
        for bias in (None, zero):
            got = oracle.wide(driver.linear(driver.from_host(x), eye, bias, act=right))
            error, other = (
                np.abs(got - oracle.ACTIVATIONS[act](x)).mean() for act in (right, wrong)
            )
            assert other > 2 * error, (right, error, other)


# ---- types


@pytest.mark.parametrize(
    ("left", "right", "outer"), list(itertools.product([F32, F16, BF16], repeat=3))
)
def test_a_product_takes_any_types(driver, rng, left, right, outer):
    a, b = rng.standard_normal((7, 33)).astype(left), rng.standard_normal((33, 5)).astype(right)
    out = driver.device.new((7, 5), np.dtype(outer))
    got = driver.gemm(driver.from_host(a), driver.from_host(b), out=out)
    assert got is out
    want = oracle.gemm(a, b)
    budget = oracle.error_budget(want, outer, terms=33, scale=oracle.gemm_scale(a, b))
    assert oracle.max_difference(oracle.wide(got), want) <= budget
    assert driver.device.fake_cublaslt.refusals == []


@pytest.mark.parametrize("place", range(4), ids=["x", "weight", "bias", "residual"])
@pytest.mark.parametrize("act", [None, "gelu"])
@pytest.mark.parametrize("stored", [F16, BF16], ids=["f16", "bf16"])
def test_a_layer_takes_float32_beside_its_storage_type(driver, rng, stored, act, place):
    arrays, on_device = layer(driver, rng, stored)
    arrays[place] = arrays[place].astype(F32)
    on_device[place] = driver.from_host(arrays[place])
    got = driver.linear(*on_device[:3], act=act, residual=on_device[3])
    want, budget = linear_oracle(arrays[0].astype(stored), *arrays[1:3], act, arrays[3])
    assert got.dtype == arrays[0].dtype
    assert oracle.max_difference(oracle.wide(got), want) <= budget
    assert driver.device.fake_cublaslt.refusals == []


@pytest.mark.parametrize("place", range(4), ids=["x", "weight", "bias", "residual"])
@pytest.mark.parametrize("wrong", [np.float64, np.int32])
def test_a_layer_refuses_what_is_no_storage_type(driver, rng, place, wrong):
    _, on_device = layer(driver, rng, F32)
    on_device[place] = driver.from_host(on_device[place].astype(wrong))
    with pytest.raises(DtypeError, match=f"^linear: got dtype {np.dtype(wrong)}"):
        driver.linear(*on_device[:3], residual=on_device[3])
    assert driver.launches_total == 0


# ---- sizes of 0, and shapes


@pytest.mark.parametrize("act", [None, "gelu", "gelu_tanh"])
def test_a_layer_without_terms_is_what_follows_the_product(driver, act):
    x, weight = driver.from_host(np.ones((3, 0), F16)), driver.from_host(np.ones((5, 0), F16))
    bias = driver.from_host(np.arange(5).astype(F16))
    residual = driver.from_host(np.ones((3, 5), F16))
    got = driver.linear(x, weight, bias, act=act, residual=residual)
    want = np.arange(5.0) if act is None else oracle.ACTIVATIONS[act](np.arange(5))
    assert oracle.max_difference(oracle.wide(got), np.tile(want + 1, (3, 1))) <= 4e-3


def test_a_layer_without_rows_launches_nothing(driver):
    x, weight = driver.from_host(np.ones((0, 3), F16)), driver.from_host(np.ones((4, 3), F16))
    bias = driver.from_host(np.ones(4, F16))
    assert driver.linear(x, weight, bias, act="gelu").shape == (0, 4)
    assert driver.gated_linear(x, weight, bias, act="silu").shape == (0, 2)
    assert driver.gemm_batched(x.reshape(0, 1, 3), weight[:0].reshape(0, 3, 4)).shape == (0, 1, 4)
    assert driver.launches_total == 0


def test_a_gated_layer_refuses_a_bias_of_one_half(driver):
    x, weight = driver.from_host(np.ones((2, 3), F16)), driver.from_host(np.ones((4, 3), F16))
    with pytest.raises(ShapeError, match=r"gated_linear: bias has shape \(2,\), wanted \(4\)"):
        driver.gated_linear(x, weight, driver.from_host(np.ones(2, F16)), act="silu")


# ---- planted mistakes

MISTAKES = {
    "no gelu but the library's": ('= act == "gelu_tanh" and', '= act in ("gelu", "gelu_tanh") and'),
    "gelu over the residual": ('"gelu_tanh" and residual is None and', '"gelu_tanh" and'),
    "a pass without its bias": ("op, out, bias=bias, act", "op, out, bias=None, act"),
    "a pass without its residual": ("act=act, residual=residual, out", "act=act, out"),
    "a pass without its activation": ("bias=bias, act=act, res", "bias=bias, act=None, res"),
    "a gate without its bias": ("_gate_rows(product, bias, act)", "_gate_rows(product, None, act)"),
    "groups that no one shares": ("a.shape[0] // b.shape[0] * a.shape[1]", "a.shape[1]"),
    "any type for any other": ("out.dtype in (a.dtype, FLOAT32)", "True"),
    "two types as they are": ("if a.dtype != b.dtype:", "if False:"),
    "a product over no terms": ("if a.shape[-1] == 0:", "if False:"),
}


def all_is_well(driver, rng):
    """Whether layers and products of every kind are right, each in one type and in two."""
    near = []
    for stored in (F32, F16):
        (x, weight, bias, residual), on_device = layer(driver, rng, stored)
        for act, last in itertools.product((None, "gelu", "gelu_tanh"), (False, True)):
            got = driver.linear(*on_device[:3], act=act, residual=on_device[3] if last else None)
            want, budget = linear_oracle(x, weight, bias, act, residual if last else None)
            near.append(oracle.max_difference(oracle.wide(got), want) <= budget)
        halves = [on_device[0], on_device[1][1:], on_device[2][1:]]
        gated = driver.gated_linear(*halves, act="silu")
        steps = driver.fused_split_gate(driver.linear(*halves), "silu")
        near.append(oracle.max_difference(oracle.wide(gated), oracle.wide(steps)) <= 4e-3)
    pairs = itertools.product(
        [((6, 7, 31), (2, 31, 5)), ((1, 3, 0), (1, 0, 5))], (F32, F16), (F32, F16)
    )
    for (left, right), inner, outer in pairs:
        a, b = rng.standard_normal(left).astype(inner), rng.standard_normal(right).astype(outer)
        out = driver.device.new((*left[:2], right[2]), np.dtype(outer))
        got = driver.gemm_batched(driver.from_host(a), driver.from_host(b), out=out)
        repeated = np.repeat(b, len(a) // len(b), axis=0)
        want, scale = oracle.gemm(a, repeated), oracle.gemm_scale(a, repeated)
        budget = oracle.error_budget(want, outer, terms=31, scale=scale)
        near.append(oracle.max_difference(oracle.wide(got), want) <= budget)
    return all(near)


def test_without_a_mistake_all_is_well(driver, rng):
    assert all_is_well(driver, rng)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_is_caught(rng, mistake):
    source = Path(products.__file__).read_text(encoding="utf-8")
    assert source.count(mistake[0]) == 1, mistake[0]
    changed = ModuleType(products.__name__)
    exec(compile(source.replace(*mistake), products.__file__, "exec"), changed.__dict__)
    methods = vars(changed.CudaProducts)
    own = {name: methods[name] for name in methods if not name.startswith("__")}
    mistaken = type("Mistaken", (CudaDriver,), own)
    try:
        assert not all_is_well(mistaken(FiberDevice("shuffled")), rng)
    except (DriverError, ValueError) as error:
        assert str(error)
