"""Products by cublasLt against float64, through a stand-in for the library."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from drivers import DriverError, ShapeError
from drivers.cuda import cublaslt, matmul
from drivers.cuda.matmul import Matmul, boundary, bucket
from tests import oracle
from tests.cuda_fibers.device import FiberDevice
from tests.cuda_fibers.fake_cublaslt import FakeCublasLt

F16, F32, BF16 = np.float16, np.float32, ml_dtypes.bfloat16
TYPES = [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
TYPE_IDS = ["f32", "f16", "f16 to f32", "bf16", "bf16 to f32"]
SIZES = [(1, 1, 1), (1, 31, 1025), (7, 1025, 33), (33, 7, 1), (31, 1023, 31), (5, 33, 8)]
WHAT_FOLLOWS = [(), ("bias",), ("residual",), ("bias", "residual"), ("gelu",), ("gelu", "bias")]


@pytest.fixture
def device():
    return FiberDevice("ascending")


def run_product(device, product, rng, types, sizes, follows=(), *, transpose_b=True, groups=()):
    """One product of random matrices: what came out, what is right, and how far it may be off."""
    (inner, outer), (m, k, n) = types, sizes
    a = rng.standard_normal((*groups, m, k)).astype(inner)
    b_shape = (n, k) if transpose_b else (k, n)
    b = (rng.standard_normal((*groups, *b_shape)) * k**-0.5).astype(inner)
    bias = rng.standard_normal(n).astype(outer) if "bias" in follows else None
    residual = rng.standard_normal((*groups, m, n)).astype(outer) if "residual" in follows else None
    out = device.new((*groups, m, n), np.dtype(outer))
    tensors = [None if x is None else device.upload(x) for x in (a, b, bias, residual)]
    product(
        "gemm",
        tensors[0],
        tensors[1],
        out,
        transpose_b=transpose_b,
        bias=tensors[2],
        gelu_tanh="gelu" in follows,
        residual=tensors[3],
    )
    want = oracle.gemm(a, b, transpose_b=transpose_b)
    scale = oracle.gemm_scale(a, b, transpose_b=transpose_b)
    for added in (bias, residual):
        if added is not None:
            want = want + oracle.wide(added)
            scale = max(scale, float(np.abs(want).max()))
    if "gelu" in follows:
        want = oracle.gelu_tanh(want)
    budget = oracle.error_budget(want, outer, terms=k + 16, scale=scale)
    for tensor, before in zip(tensors, (a, b, bias, residual)):
        assert tensor is None or np.array_equal(tensor, before)
    return out, want, budget


def assert_near(out, want, budget):
    assert oracle.max_difference(oracle.wide(out), want) <= budget


# ---- buckets and boundaries


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (1, 16),
        (16, 16),
        (17, 32),
        (512, 512),
        (1023, 1024),
        (1025, 2048),
        (5000, 5120),
        (32768, 32768),
        (32769, 65536),
        (100_000, 131072),
    ],
)
def test_a_bucket_holds_the_rows(rows, wanted):
    assert bucket(rows) == wanted


def test_buckets_are_few_and_a_padded_batch_is_its_own():
    buckets = [bucket(rows) for rows in range(1, 32769)]
    assert all(rows <= size for rows, size in enumerate(buckets, 1))
    assert buckets == sorted(buckets)
    assert len(set(buckets)) == 38
    assert all(bucket(rows) == rows for rows in range(1024, 32769, 1024))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [((0,), 256), ((4096,), 256), ((4096, 0), 256), ((4096, 6), 2), ((8, 4096), 8), ((3,), 1)],
)
def test_the_boundary_of_addresses_and_strides(values, wanted):
    assert boundary(*values) == wanted


# ---- values


@pytest.mark.parametrize("follows", WHAT_FOLLOWS, ids=lambda follows: " ".join(follows) or "none")
@pytest.mark.parametrize("types", TYPES, ids=TYPE_IDS)
def test_a_product_and_what_follows_it_match_oracle_in_one_launch(device, rng, types, follows):
    product, fake = Matmul(device), device.fake_cublaslt
    for number, sizes in enumerate(SIZES, 1):
        assert_near(*run_product(device, product, rng, types, sizes, follows))
        assert len(fake.matmuls) == number
    assert fake.refusals == []
    assert {stream for *_, stream in fake.matmuls} == {device.stream_address}


@pytest.mark.parametrize("transpose_b", [False, True], ids=["b", "bT"])
@pytest.mark.parametrize("groups", [(), (1,), (3,)], ids=["plain", "one group", "three groups"])
@pytest.mark.parametrize("types", TYPES, ids=TYPE_IDS)
def test_groups_and_transposes_match_oracle(device, rng, types, groups, transpose_b):
    product = Matmul(device)
    for sizes in SIZES:
        case = run_product(
            device, product, rng, types, sizes, transpose_b=transpose_b, groups=groups
        )
        assert_near(*case)
    assert device.fake_cublaslt.refusals == []


def test_float16_into_float32_is_not_rounded_on_the_way(device, rng):
    out, want, budget = run_product(device, Matmul(device), rng, (F16, F32), (7, 1023, 31))
    assert_near(out, want, budget)
    assert oracle.rounding_error(want, F16) > 100 * budget


def test_bias_and_residual_are_added_before_the_one_rounding(device):
    """2048 + 1 - 1: with a rounding to float16 after each step it would be 2047."""
    one, large = (device.upload(np.array([[x]], F16)) for x in (1, 2048))
    bias, residual = device.upload(np.array([-1], F16)), device.upload(np.array([[1]], F16))
    out = device.new((1, 1), np.dtype(F16))
    Matmul(device)("gemm", large, one, out, transpose_b=True, bias=bias, residual=residual)
    assert out.item() == 2048


def test_the_residual_may_be_written_over(device, rng):
    a, b, residual = (rng.standard_normal(s).astype(F16) for s in [(7, 31), (5, 31), (7, 5)])
    out = device.upload(residual)
    Matmul(device)(
        "linear", device.upload(a), device.upload(b), out, transpose_b=True, residual=out
    )
    want = oracle.gemm(a, b, transpose_b=True) + oracle.wide(residual)
    assert_near(out, want, oracle.error_budget(want, F16, terms=31, scale=8))


# ---- plans


def test_rows_of_a_bucket_share_a_choice_and_keep_their_own_sizes(device, rng):
    product, fake = Matmul(device), device.fake_cublaslt
    for rows in (16, 1, 8, 16):
        # 64 columns of float32: every address lies on the same boundary
        assert_near(*run_product(device, product, rng, (F32, F32), (rows, 64, 64), ("bias",)))
    assert fake.heuristics_total == 1
    run_product(device, product, rng, (F32, F32), (17, 64, 64), ("bias",))
    assert fake.heuristics_total == 2
    run_product(device, product, rng, (F32, F32), (16, 64, 64))
    assert fake.heuristics_total == 3
    assert [cols for _, cols, *_ in fake.matmuls] == [16, 1, 8, 16, 17, 16]


def test_groups_of_other_rows_lie_at_other_strides(device, rng):
    product = Matmul(device)
    for rows in (16, 3, 9):
        assert_near(*run_product(device, product, rng, (F16, F16), (rows, 64, 64), groups=(3,)))
    assert device.fake_cublaslt.refusals == []


@pytest.mark.parametrize("offset", [1, 2, 4, 8, 16])
def test_an_operand_off_the_boundary_gets_an_algorithm_that_can_read_it(device, rng, offset):
    product, fake = Matmul(device), device.fake_cublaslt
    run_product(device, product, rng, (F16, F16), (16, 128, 128), ("bias", "residual"))
    a, b = (rng.standard_normal((128, 128)).astype(F16) for _ in range(2))
    bias = rng.standard_normal(128).astype(F16)
    moved = []
    for array in (a, b, bias):
        memory = device.new((array.size + offset,), array.dtype)
        memory[offset:] = array.ravel()
        moved.append(memory[offset:].reshape(array.shape))
    out = device.new((128 * 128 + offset,), a.dtype)[:-offset].reshape(128, 128)
    product("gemm", moved[0], moved[1], out, transpose_b=True, bias=moved[2])
    want = oracle.gemm(a, b, transpose_b=True) + oracle.wide(bias)
    assert_near(out, want, oracle.error_budget(want, F16, terms=128, scale=64))
    assert fake.refusals == []


def test_an_algorithm_that_serves_one_size_only_is_chosen_again_for_each(device, rng):
    device.fake_cublaslt = fake = FakeCublasLt(one_size=True)
    product = Matmul(device)
    for rows, choices in ((3, 2), (3, 2), (5, 3), (16, 3)):
        assert_near(*run_product(device, product, rng, (F32, F32), (rows, 64, 64)))
        assert fake.heuristics_total == choices
    assert fake.refusals == ["another size"]


# ---- refusals


def test_an_array_with_gaps_is_refused(device):
    product = Matmul(device)
    wide, square = device.new((4, 8), np.dtype(F32)), device.new((4, 4), np.dtype(F32))
    for name in ("a", "b", "out", "residual"):
        arrays = {"a": square, "b": square, "out": square, "residual": square, name: wide[:, :4]}
        with pytest.raises(ShapeError, match=r"gemm: an array of shape \(4, 4\) is not contiguous"):
            product("gemm", **arrays, transpose_b=True)
    assert device.fake_cublaslt.matmuls == []


def test_what_the_library_refuses_is_an_error_that_names_the_product(device):
    a, b = device.new((4, 8), np.dtype(F32)), device.new((4, 8), np.dtype(F16))
    out = device.new((4, 4), np.dtype(F16))
    with pytest.raises(DriverError, match=r"linear: a \(4, 8\), b \(4, 8\): .*status 15.*n=4"):
        Matmul(device)("linear", a, b, out, transpose_b=True)


# ---- planted mistakes


MISTAKES = {
    "B is turned without need": ("matmul", "transpose_a=problem.transpose_b", "transpose_a=True"),
    "B is never turned": ("matmul", "transpose_a=problem.transpose_b", "transpose_a=False"),
    "B stored the other way": ("matmul", "(k, n) if problem.transpose_b", "(n, k) if 1"),
    "A and B change places": ("matmul", "matrices = (b, a,", "matrices = (a, b,"),
    "the residual is left out": ("matmul", "0.0 if residual is None else 1.0", "0.0"),
    "the result is added to itself": ("matmul", "out if residual is None else residual", "out"),
    "the bias is left out": ("matmul", "False): Epilogue.BIAS", "False): Epilogue.NONE"),
    "gelu without its bias": ("matmul", "True): Epilogue.GELU_BIAS", "True): Epilogue.GELU"),
    "a bias without its gelu": ("matmul", "True): Epilogue.GELU_BIAS", "True): Epilogue.BIAS"),
    "the first bias for ever": ("matmul", "plan.set_bias(*bias)", "pass"),
    "the first rows for ever": ("matmul", "plan.set_rows(rows)", "pass"),
    "the first stride for ever": ("matmul", "rows * width if batched else None", "None"),
    "groups follow at a wrong stride": ("matmul", "rows, groups, rows * k))", "rows, groups, k))"),
    "strides bound nothing": ("matmul", "(*addresses, *strides)", "(*addresses)"),
    "the bias bounds nothing": ("matmul", "(*addresses, *strides)", "(*addresses[:4], *strides)"),
    "all on boundaries of 256": ("matmul", "return bits & -bits", "return BOUNDARY_BYTES"),
    "a bias on any boundary": ("matmul", "max(problem.boundary,", "max(BOUNDARY_BYTES,"),
    "no word of boundaries": (
        "cublaslt",
        "**{each: c_uint32(boundary) for each in ALIGNMENTS},",
        "",
    ),
    "a leading dimension of columns": ("cublaslt", "matrix.cols, rows)", "rows, matrix.cols)"),
    "batches of one": ("cublaslt", "c_int32(matrix.batch)", "c_int32(1)"),
    "sums split in float16": ("cublaslt", "COMPUTE_TYPE = 2", "COMPUTE_TYPE = 7"),
    "TF32": ("cublaslt", "COMPUTE_32F = 68", "COMPUTE_32F = 77"),
    "bfloat16 read as float16": ("cublaslt", "BFLOAT16: 14", "BFLOAT16: 2"),
    "float16 read as bfloat16": ("cublaslt", "FLOAT16: 2", "FLOAT16: 14"),
    "the bias of another attribute": ("cublaslt", "BIAS_POINTER = 8", "BIAS_POINTER = 7"),
    "the stride of another attribute": ("cublaslt", "BATCH_STRIDE = 6", "BATCH_STRIDE = 4"),
    "a workspace that is not there": ("cublaslt", "workspace, workspace_bytes, str", "0, 0, str"),
    "twice the product": ("cublaslt", "ONE = c_float(1.0)", "ONE = c_float(2.0)"),
}


def imported_with(monkeypatch, mistake) -> ModuleType:
    """drivers.cuda.matmul anew, with a mistake planted in it or in drivers.cuda.cublaslt."""
    where, before, after = mistake
    for module in (cublaslt, matmul):
        source = Path(module.__file__).read_text(encoding="utf-8")
        if module.__name__.endswith(where):
            assert source.count(before) == 1, before
            source = source.replace(before, after)
        changed = ModuleType(module.__name__)
        monkeypatch.setitem(sys.modules, module.__name__, changed)
        exec(compile(source, module.__file__, "exec"), changed.__dict__)
    return changed


def all_is_well(device, module, rng):
    """Whether products of every kind are right."""
    product = module.Matmul(device)
    kinds = [(follows, True, ()) for follows in WHAT_FOLLOWS] + [((), False, ()), ((), True, (3,))]
    for types in TYPES:
        for follows, transpose_b, groups in kinds:
            for sizes in ((16, 64, 64), (3, 64, 64), (7, 1023, 33), (5, 31, 256)):
                out, want, budget = run_product(
                    device,
                    product,
                    rng,
                    types,
                    sizes,
                    follows,
                    transpose_b=transpose_b,
                    groups=groups,
                )
                if not oracle.max_difference(oracle.wide(out), want) <= budget:
                    return False
    return not device.fake_cublaslt.refusals


def test_without_a_mistake_all_is_well(device, rng):
    assert all_is_well(device, matmul, rng)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_is_caught(device, rng, monkeypatch, mistake):
    module = imported_with(monkeypatch, mistake)
    try:
        assert not all_is_well(device, module, rng)
    except (DriverError, AssertionError) as error:
        assert str(error)
