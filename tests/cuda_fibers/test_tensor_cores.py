"""The fibers' tensor cores and asynchronous copies, and the mistakes with them that must show."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from drivers.cuda.launch import KERNELS, STORAGE, Build, Launch
from tests import oracle
from tests.cuda_fibers.engine import ORDERS, PTX, FiberError, compile_kernels
from tests.cuda_fibers.host_memory import guarded
from tests.cuda_fibers.planted import ends

CASES = Path(__file__).parent / "tensor_core_cases.cu"
TYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def module(dtype, before="", after=""):
    text = CASES.read_text(encoding="utf-8")
    assert text.count(before) == 1 or not before
    prelude = (KERNELS / "prelude.cu").read_text(encoding="utf-8")
    source = prelude + PTX + (text.replace(before, after) if before else text)
    return compile_kernels(
        Build(source, ("one_product", "copy_existing"), (f"STORAGE={STORAGE[dtype]}",))
    )


def upload(array):
    out = guarded(array.shape, array.dtype)
    out[...] = array
    return out


class Product:
    """c = a b of random fragments, computed on fibers."""

    def __init__(self, rng, dtype, kernels, order, threads=32):
        self.a = rng.standard_normal((16, 16)).astype(dtype)
        self.b = rng.standard_normal((16, 8)).astype(dtype)
        self.c = guarded((2, 16, 8), np.float32)
        self.packed, self.powers = guarded((32, 2), dtype), guarded(32, np.float32)
        tensors = [self.c, upload(self.a), upload(self.b), upload(self.b.T.copy())]
        arguments = [*tensors, self.packed, self.powers, np.float32(5.5)]
        launch = Launch("one_product", (1, 1, 1), (threads, 1, 1), shared_bytes=1024)
        kernels.run(launch, arguments, order)
        self.want = oracle.gemm(self.a, self.b)
        terms = oracle.gemm_scale(self.a, self.b)
        self.budget = oracle.error_budget(self.want, np.float32, terms=16, scale=terms)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_product_of_fragments_is_the_product_of_the_matrices(rng, dtype, order):
    got = Product(rng, dtype, module(dtype), order)
    for c in got.c:
        assert oracle.max_difference(c, got.want) <= got.budget
    lanes = np.arange(32)
    assert np.array_equal(got.packed, np.stack([lanes, -lanes], axis=1).astype(dtype))
    powers = 2.0 ** (-5.5 * lanes)
    assert oracle.max_difference(got.powers, powers) <= 2.0**-23
    assert (got.powers[powers < 2.0**-126] == 0).all()
    assert (powers < 2.0**-126).any()


WRONG = {
    "no wait": ("wait_for_copies<0>();  // b", ""),
    "a wait for the older group alone": ("wait_for_copies<0>();  // b", "wait_for_copies<1>();"),
    "a target that is read again after its next copy began": (
        "    unsigned rows[4]",
        "    copy_16_bytes(shared_a + lane * 8, a + lane * 8, true);\n    unsigned rows[4]",
    ),
    "a matrix that is not transposed": ("load_matrices_transposed(", "load_matrices("),
    "halves of a fragment exchanged": ("turned[0], turned[1]", "turned[1], turned[0]"),
}
ENDED = {
    "no boundary for ldmatrix": (
        "shared_a + lane % 16 * 16", "shared_a + 4 + lane % 16 * 16", "boundary of 16 bytes",
    ),
    "no boundary for cp.async": ("a + lane * 8, true", "a + lane * 7, true", "boundary of 16"),
    "ldmatrix of device memory": (
        "load_matrices(rows, shared_a", "load_matrices(rows, a", "from outside the shared memory",
    ),
    "ldmatrix behind the shared memory": (
        "load_matrices(turned, shared_turned", "load_matrices(turned, shared_turned + 128",
        "from outside the shared memory",
    ),
    "a copy behind the shared memory": (
        "lane < 16 ? shared_b : shared_turned", "lane < 16 ? shared_b : shared_turned + 128",
        "copies to outside the shared memory",
    ),
    "a product that some lanes skip": (
        "multiply_add<STORAGE>(same", "if (lane != 3) multiply_add<STORAGE>(same", "never come",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_gives_a_wrong_answer(rng, name):
    dtype = TYPES[0]
    for order in ORDERS:
        got = Product(rng, dtype, module(dtype, *WRONG[name]), order)
        worst = max(oracle.max_difference(c, got.want) for c in got.c)
        assert not worst <= 1000 * got.budget


@pytest.mark.parametrize("name", ENDED)
def test_a_fault_ends_the_launch_with_a_message(rng, name):
    before, after, message = ENDED[name]
    kernels = module(TYPES[0], before, after)
    ends(lambda order: Product(rng, TYPES[0], kernels, order), "one_product", message)


def test_a_product_needs_a_whole_warp(rng):
    with pytest.raises(FiberError, match="a warp that is not whole"):
        Product(rng, TYPES[0], module(TYPES[0]), ORDERS[0], threads=31)


@pytest.mark.parametrize("exists", [0, 1, 2])
def test_a_copy_of_what_does_not_exist_gives_zeros(exists):
    start = np.arange(1, 17, dtype=np.float16).reshape(2, 8)
    to, source = guarded((2, 8), np.float16), upload(start[:exists])
    launch = Launch("copy_existing", (1, 1, 1), (16, 1, 1), shared_bytes=32)
    module(TYPES[0]).run(launch, [to, source, np.int32(exists)], "shuffled")
    assert np.array_equal(to, np.where(np.arange(2)[:, None] < exists, start, 0))


def test_inline_ptx_outside_of_its_one_file_is_refused():
    with pytest.raises(ValueError, match="inline PTX in tensor_cores.cuh alone"):
        compile_kernels(Build('asm("");', (), ()))
