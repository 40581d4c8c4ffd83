"""Row-major matrix products by cublasLt: plans by shape, one workspace, fused bias and residual."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from drivers.cuda.cublaslt import (
    CHOOSE,
    STATUS_NOT_SUPPORTED,
    CublasLt,
    CublasLtError,
    Epilogue,
    Matrix,
)
from drivers.cuda.device import Array, Device
from drivers.errors import DriverError, ShapeError

WORKSPACE_BYTES = 32 * 2**20  # what cublasLt wants at most on Hopper
SMALLEST_BUCKET = 16  # rows
BUCKET_STEP = 1024  # rows; big batches come padded to a multiple of it
FINEST_UP_TO = 32 * BUCKET_STEP  # rows of the largest batch that is usual
BOUNDARY_BYTES = 256  # more than this no algorithm asks for

EPILOGUES = {  # with a bias, with gelu_tanh
    (False, False): Epilogue.NONE,
    (True, False): Epilogue.BIAS,
    (False, True): Epilogue.GELU,
    (True, True): Epilogue.GELU_BIAS,
}


class NoAlgorithm(DriverError):
    """cublasLt has no kernel for a product with what is to follow it."""


def bucket(rows: int) -> int:
    """The number of rows that the algorithm for so many is chosen at, never a smaller one.

    Powers of two to 1,024, then multiples of 1,024 to 32,768, then powers of two again.
    """
    if BUCKET_STEP < rows <= FINEST_UP_TO:
        return -(-rows // BUCKET_STEP) * BUCKET_STEP
    return max(SMALLEST_BUCKET, 1 << (rows - 1).bit_length())


def boundary(*addresses_and_strides: int) -> int:
    """The power of two, in bytes and at most 256, that all of them are multiples of."""
    bits = BOUNDARY_BYTES
    for value in addresses_and_strides:
        bits |= value
    return bits & -bits


class Problem(NamedTuple):
    """What an algorithm is chosen for: C (M, N) = A (M, K) B, M being `rows`, for each group."""

    rows: int
    n: int
    k: int
    groups: int
    transpose_b: bool  # B is (N, K)
    dtype: np.dtype[Any]  # of A and B
    out_dtype: np.dtype[Any]
    epilogue: Epilogue
    boundary: int  # bytes: all matrices and the bias start at a multiple of it


class Plan:
    """A product of the library: descriptors and algorithm of a problem, for any rows.

    Row-major C (M, N) is column-major (N, M), which is op(B) times A's own memory: so the library's
    first matrix is B, its second A, its columns are our rows, and a bias for each of its rows is
    one for each of our columns.
    """

    def __init__(self, lt: CublasLt, problem: Problem) -> None:
        self._lt = lt
        self._problem = problem
        n, k, rows, groups = problem.n, problem.k, problem.rows, problem.groups
        self.operation = lt.operation(transpose_a=problem.transpose_b, epilogue=problem.epilogue)
        self._bias = 0
        # An address that the choice is made by, and that is never read.
        self.set_bias(max(problem.boundary, problem.out_dtype.itemsize))
        stored = (k, n) if problem.transpose_b else (n, k)
        self._weight = lt.layout(Matrix(problem.dtype, *stored, groups, n * k))
        self._input = lt.layout(Matrix(problem.dtype, k, rows, groups, rows * k))
        self._output = lt.layout(Matrix(problem.out_dtype, n, rows, groups, rows * n))
        self._rows = rows
        self.layouts = (self._weight, self._input, self._output, self._output)  # residual, C
        self.algorithm = lt.choose(self.operation, self.layouts, problem.boundary, WORKSPACE_BYTES)

    def set_bias(self, address: int) -> None:
        """The bias (N,) of the next product, where the epilogue adds one."""
        if address != self._bias and self._problem.epilogue & Epilogue.BIAS:
            self._lt.set_bias(self.operation, address)
            self._bias = address

    def set_rows(self, rows: int) -> None:
        """M of the next product."""
        if rows == self._rows:
            return
        batched = self._problem.groups > 1
        for layout, width in ((self._input, self._problem.k), (self._output, self._problem.n)):
            self._lt.set_cols(layout, rows, rows * width if batched else None)
        self._rows = rows


class Matmul:
    """Products of the arrays of a device: float32 sums whatever their storage, rounded once.

    The algorithm is cublasLt's choice, made once for each bucket of rows. The workspace is
    allocated here, before any batch.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lt = CublasLt(device.cublaslt())
        self._workspace = device.new((WORKSPACE_BYTES,), np.dtype(np.uint8))
        self._workspace_address = device.address(self._workspace)
        self._plans: dict[Problem, Plan | None] = {}  # None where there is no algorithm
        self._unshared: set[Problem] = set()  # whose algorithm does not serve fewer rows

    def __call__(
        self,
        op: str,
        a: Array,
        b: Array,
        out: Array,
        *,
        transpose_b: bool,
        bias: Array | None = None,
        gelu_tanh: bool = False,
        residual: Array | None = None,
    ) -> None:
        """out = gelu_tanh(a @ b + residual + bias), what is not given left out: one launch.

        a (M, K), b (K, N) or with `transpose_b` (N, K), out and residual (M, N), bias (N,); or a, b
        and out with groups before, as many each. No size is 0. a and b have one dtype; out, bias
        and residual have that one too, or all of them float32.

        Raises ShapeError for an array that is not contiguous, NoAlgorithm where cublasLt has none,
        and DriverError for what else it refuses.
        """
        matrices = (b, a, out if residual is None else residual, out)
        arrays = matrices if bias is None else (*matrices, bias)
        for array in arrays:
            if not array.flags.c_contiguous:
                raise ShapeError(f"{op}: an array of shape {array.shape} is not contiguous")
        addresses = tuple(map(self._device.address, arrays))
        groups = a.shape[0] if len(a.shape) == 3 else 1
        strides = [x.size // groups * x.dtype.itemsize for x in matrices] if groups > 1 else ()
        rows = a.shape[-2]
        problem = Problem(
            rows=bucket(rows),
            n=out.shape[-1],
            k=a.shape[-1],
            groups=groups,
            transpose_b=transpose_b,
            dtype=a.dtype,
            out_dtype=out.dtype,
            epilogue=EPILOGUES[bias is not None, gelu_tanh],
            boundary=boundary(*addresses, *strides),
        )
        beta = 0.0 if residual is None else 1.0
        try:
            self._run(problem, rows, addresses, beta)
        except CublasLtError as error:
            kind = NoAlgorithm if error.status == STATUS_NOT_SUPPORTED else DriverError
            raise kind(f"{op}: a {a.shape}, b {b.shape}: {error} for {problem}") from error

    def _run(self, problem: Problem, rows: int, addresses: tuple[int, ...], beta: float) -> None:
        """The product with the algorithm of its bucket, or of its very rows if that one cannot."""
        exact = problem._replace(rows=rows)
        first = exact if problem in self._unshared else problem
        try:
            self._launch(first, rows, addresses, beta)
        except CublasLtError as error:
            if error.status != STATUS_NOT_SUPPORTED or first == exact:
                raise
            self._unshared.add(problem)
            self._launch(exact, rows, addresses, beta)

    def _launch(self, problem: Problem, rows: int, addresses: tuple[int, ...], beta: float) -> None:
        if problem not in self._plans:
            self._plans[problem] = self._plan(problem)
        plan = self._plans[problem]
        if plan is None:
            raise CublasLtError(CHOOSE, STATUS_NOT_SUPPORTED)
        plan.set_rows(rows)
        b, a, residual, out, *bias = addresses
        if bias:
            plan.set_bias(*bias)
        self._lt.matmul(
            plan.operation,
            (b, a, residual, out),
            plan.layouts,
            beta,
            plan.algorithm,
            self._workspace_address,
            WORKSPACE_BYTES,
            self._device.stream_address,
        )

    def _plan(self, problem: Problem) -> Plan | None:
        try:
            return Plan(self._lt, problem)
        except CublasLtError as error:
            if error.status != STATUS_NOT_SUPPORTED:
                raise
            return None
