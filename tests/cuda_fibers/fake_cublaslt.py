"""libcublasLt as its documentation describes it, on host memory: the product itself in NumPy.

Every function is a C function pointer of its own prototype, so that the driver's calls go through
ctypes as they do to the real library. Handles are opaque, attributes have exact sizes, matrices are
column-major with a leading dimension, and what the library refuses is refused by its status. An
algorithm is bound to what it was chosen for: operands on lower boundaries, a smaller workspace or
another problem are refused where the real one would read wrongly or fail. A sum may be split in two
and is then rounded as the preference allows it: in the output's dtype, unless that is forbidden.
"""

from __future__ import annotations

import ctypes
import itertools
import traceback
from ctypes import c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from tests.cuda_fibers.host_memory import Unreachable, memory

SUCCESS, INVALID_VALUE, EXECUTION_FAILED, INTERNAL_ERROR, NOT_SUPPORTED = 0, 7, 13, 14, 15
R_32F, R_16F, R_16BF = 0, 2, 14
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
DTYPES = {R_32F: np.float32, R_16F: np.float16, R_16BF: ml_dtypes.bfloat16}
NO_TRANSPOSE, TRANSPOSE = 0, 1
DEFAULT, RELU, BIAS, GELU = 1, 2, 4, 32
EPILOGUES = (DEFAULT, RELU, BIAS, GELU, RELU | BIAS, GELU | BIAS)
WORKSPACE_BOUNDARY = 256
REDUCE_IN_OUTPUT_TYPE = 1 | 4  # in place, and out of place

COMBINATIONS = {  # A and B, C and D: what COMPUTE_32F with float32 alpha and beta has
    (R_32F, R_32F),
    (R_16F, R_16F),
    (R_16F, R_32F),
    (R_16BF, R_16BF),
    (R_16BF, R_32F),
}

OPERATION = {  # attribute: its C type and default
    0: (c_int32, COMPUTE_32F),
    3: (c_int32, NO_TRANSPOSE),
    4: (c_int32, NO_TRANSPOSE),
    7: (c_uint32, DEFAULT),
    8: (c_void_p, None),
}
LAYOUT = {
    0: (c_uint32, None),
    2: (c_uint64, None),
    3: (c_uint64, None),
    4: (c_int64, None),
    5: (c_int32, 1),
    6: (c_int64, 0),
}
PREFERENCE = {
    1: (c_uint64, 0),
    3: (c_uint32, 7),
    5: (c_uint32, 256),
    6: (c_uint32, 256),
    7: (c_uint32, 256),
    8: (c_uint32, 256),
}

HANDLE, POINTER = c_void_p, c_void_p
CREATE_LAYOUT = (POINTER, c_int, c_uint64, c_uint64, c_int64)
SET_ATTRIBUTE = (HANDLE, c_int, POINTER, c_size_t)
FUNCTIONS = {
    "cublasLtCreate": (POINTER,),
    "cublasLtMatmulDescCreate": (POINTER, c_int, c_int),
    "cublasLtMatmulDescSetAttribute": SET_ATTRIBUTE,
    "cublasLtMatrixLayoutCreate": CREATE_LAYOUT,
    "cublasLtMatrixLayoutSetAttribute": SET_ATTRIBUTE,
    "cublasLtMatmulPreferenceCreate": (POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": SET_ATTRIBUTE,
    "cublasLtMatmulPreferenceDestroy": (HANDLE,),
    "cublasLtMatmulAlgoGetHeuristic": (*[HANDLE] * 7, c_int, POINTER, POINTER),
    "cublasLtMatmul": (
        *(HANDLE, HANDLE, POINTER),
        *(POINTER, HANDLE, POINTER, HANDLE, POINTER),
        *(POINTER, HANDLE, POINTER, HANDLE),
        *(POINTER, POINTER, c_size_t, c_void_p),
    ),
}


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", c_uint64 * 8),
        ("workspaceSize", c_size_t),
        ("state", c_int),
        ("wavesCount", c_float),
        ("reserved", c_int * 4),
    )


class Refused(Exception):
    """A call that ends with a status, and why."""

    def __init__(self, status, why) -> None:
        super().__init__(why)
        self.status = status


def require(condition, why, status=INVALID_VALUE):
    if not condition:
        raise Refused(status, why)


@dataclass
class Descriptor:
    """An object behind a handle: its attributes by number."""

    kinds: dict
    values: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = {number: default for number, (_, default) in self.kinds.items()} | self.values

    def __getitem__(self, number):
        return self.values[number]

    def set(self, number, address, size):
        require(number in self.kinds, f"attribute {number}")
        kind = self.kinds[number][0]
        require(size == ctypes.sizeof(kind), f"attribute {number} of {size} bytes")
        self.values[number] = kind.from_address(address).value


@dataclass(frozen=True)
class Stored:
    """A column-major matrix in memory, or a strided batch of them."""

    dtype: np.dtype
    rows: int
    cols: int
    leading: int
    batch: int
    stride: int

    @property
    def elements(self):
        return (self.batch - 1) * self.stride + (self.cols - 1) * self.leading + self.rows

    def view(self, flat):
        """(batch, rows, cols) on elements of memory."""
        strides = [n * flat.itemsize for n in (self.stride, 1, self.leading)]
        shape = (self.batch, self.rows, self.cols)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)


@dataclass(frozen=True)
class Choice:
    """What an algorithm was chosen for."""

    problem: tuple
    cols: int
    boundaries: tuple
    bias_boundary: int
    workspace_bytes: int
    splits_in_output_type: bool


def boundary(address):
    return min(256, address & -address) if address else 256


def to_tf32(x):
    """Without the 13 last bits of 23."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


class FakeCublasLt:
    """The library. `refusals` holds why calls were refused, `matmuls` the calls that were not,
    `objects` what is behind handles.

    one_size: algorithms serve only the sizes they were chosen at. epilogues: those it has.
    """

    def __init__(self, *, one_size=False, epilogues=EPILOGUES) -> None:
        self.one_size = one_size
        self.epilogues = epilogues
        self.refusals = []
        self.matmuls = []
        self.heuristics_total = 0
        self._memory = memory()
        self.objects = {}
        self._numbers = itertools.count(0x1000, 0x10)
        for name, parameters in FUNCTIONS.items():
            method = getattr(self, "_" + name.removeprefix("cublasLt"))
            setattr(self, name, ctypes.CFUNCTYPE(c_int, *parameters)(self._guarded(method)))

    def _guarded(self, method):
        def call(*arguments):
            try:
                method(*arguments)
                return SUCCESS
            except Refused as refused:
                self.refusals.append(str(refused))
                return refused.status
            except Unreachable as beyond:
                self.refusals.append(str(beyond))
                return EXECUTION_FAILED
            except Exception:
                self.refusals.append(traceback.format_exc())
                return INTERNAL_ERROR

        return call

    def _new(self, at, value):
        number = next(self._numbers)
        self.objects[number] = value
        c_void_p.from_address(at).value = number

    def _object(self, handle, kinds):
        made = self.objects.get(handle)
        require(isinstance(made, Descriptor) and made.kinds is kinds, f"handle {handle}")
        return made

    # ---- descriptors

    def _Create(self, at):
        self._new(at, "library")

    def _MatmulDescCreate(self, at, compute, scale):
        known = (COMPUTE_32F, COMPUTE_32F_FAST_TF32)
        require(compute in known, f"compute type {compute}", NOT_SUPPORTED)
        require(scale == R_32F, f"scale type {scale}", NOT_SUPPORTED)
        self._new(at, Descriptor(OPERATION, {0: compute}))

    def _MatmulDescSetAttribute(self, handle, number, address, size):
        self._object(handle, OPERATION).set(number, address, size)

    def _MatrixLayoutCreate(self, at, kind, rows, cols, leading):
        require(kind in DTYPES, f"data type {kind}", NOT_SUPPORTED)
        self._new(at, Descriptor(LAYOUT, {0: kind, 2: rows, 3: cols, 4: leading}))

    def _MatrixLayoutSetAttribute(self, handle, number, address, size):
        self._object(handle, LAYOUT).set(number, address, size)

    def _MatmulPreferenceCreate(self, at):
        self._new(at, Descriptor(PREFERENCE))

    def _MatmulPreferenceSetAttribute(self, handle, number, address, size):
        self._object(handle, PREFERENCE).set(number, address, size)

    def _MatmulPreferenceDestroy(self, handle):
        self._object(handle, PREFERENCE)
        del self.objects[handle]

    # ---- products

    def _problem(self, operation, layouts):
        """Everything but the columns of B, C and D, and the matrices; refuses what does not fit."""
        operation = self._object(operation, OPERATION)
        layouts = [self._object(layout, LAYOUT) for layout in layouts]
        stored = [
            Stored(np.dtype(DTYPES[of[0]]), of[2], of[3], of[4], of[5], of[6]) for of in layouts
        ]
        for name, one in zip("ABCD", stored):
            require(min(one.rows, one.cols, one.batch) >= 1, f"{name} is empty: {one}")
            require(one.leading >= one.rows, f"{name}: columns overlap: {one}")
        a, b, c, d = stored
        kinds = [layout[0] for layout in layouts]
        require(kinds[0] == kinds[1], f"A and B of types {kinds[:2]}", NOT_SUPPORTED)
        require(kinds[2] == kinds[3], f"C and D of types {kinds[2:]}", NOT_SUPPORTED)
        require((kinds[0], kinds[2]) in COMBINATIONS, f"types {kinds}", NOT_SUPPORTED)
        require(operation[7] in self.epilogues, f"epilogue {operation[7]}", NOT_SUPPORTED)
        turned = operation[3], operation[4]
        (m, k) = (a.cols, a.rows) if turned[0] else (a.rows, a.cols)
        (k_too, n) = (b.cols, b.rows) if turned[1] else (b.rows, b.cols)
        require(k == k_too, f"op(A) is ({m}, {k}), op(B) is ({k_too}, {n})")
        for name, one in (("C", c), ("D", d)):
            require((one.rows, one.cols) == (m, n), f"{name} is {one}, wanted ({m}, {n})")
        require(len({one.batch for one in stored}) == 1, f"batches of {stored}")
        if d.batch > 1:
            require(d.stride >= (d.cols - 1) * d.leading + d.rows, f"D overlaps itself: {d}")
        if operation[7] & BIAS:
            require(operation[8], "a bias epilogue without a bias")
            where = f"the bias at {operation[8]:#x}"
            require(operation[8] % d.dtype.itemsize == 0, f"{where}, not on a boundary of its type")
        problem = (m, k, *kinds, *turned, operation[7], d.batch, a.leading, b.leading, d.leading)
        return operation, stored, problem, n

    def _MatmulAlgoGetHeuristic(
        self, library, operation, a, b, c, d, preference, wanted, results, found
    ):
        self.heuristics_total += 1
        require(self.objects.get(library) == "library", "no library handle")
        require(wanted >= 1, f"{wanted} algorithms wanted")
        operation, stored, problem, cols = self._problem(operation, (a, b, c, d))
        preference = self._object(preference, PREFERENCE)
        c_int.from_address(found).value = 1
        result = HeuristicResult.from_address(results)
        needed = 4 * stored[3].rows * cols * stored[3].batch  # a split sum, in float32
        splits = needed <= preference[1] and bool(preference[3])
        choice = Choice(
            problem,
            cols,
            tuple(preference[number] for number in (5, 6, 7, 8)),
            boundary(operation[8] or 0),
            needed if splits else 0,
            splits and bool(preference[3] & REDUCE_IN_OUTPUT_TYPE),
        )
        number = next(self._numbers)
        self.objects[number] = choice
        result.algo[:] = [number] * 8
        result.workspaceSize, result.state, result.wavesCount = choice.workspace_bytes, 0, 1.0

    def _Matmul(self, library, operation, alpha, *operands):
        a, layout_a, b, layout_b, beta, c, layout_c, d, layout_d, *how = operands
        algorithm, workspace, workspace_bytes, stream = how
        require(self.objects.get(library) == "library", "no library handle")
        layouts = (layout_a, layout_b, layout_c, layout_d)
        operation, stored, problem, cols = self._problem(operation, layouts)
        addresses = (a, b, c, d)
        for name, at, one in zip("ABCD", addresses, stored):
            require(at and at % one.dtype.itemsize == 0, f"{name} is at {at}")
        require(c != d or stored[2] == stored[3], f"in place from {stored[2]} to {stored[3]}")
        choice = self.objects.get((c_uint64 * 8).from_address(algorithm)[0])
        self._check(choice, problem, cols, stored, addresses, operation)
        needed = choice.workspace_bytes * cols // choice.cols
        require(needed <= workspace_bytes, f"wants {needed} bytes, has {workspace_bytes}")
        require(not needed or workspace % WORKSPACE_BOUNDARY == 0, f"workspace at {workspace:#x}")
        alpha, beta = (c_float.from_address(at).value for at in (alpha, beta))
        total = self._product(operation, stored, addresses, alpha, beta, choice)
        flat = self._memory.read(d, stored[3].elements, stored[3].dtype)
        with np.errstate(over="ignore"):
            stored[3].view(flat)[...] = total.astype(stored[3].dtype)
        self._memory.write(d, flat)
        self.matmuls.append((problem, cols, beta, stream))

    def _check(self, choice, problem, cols, stored, addresses, operation):
        """Whether the algorithm was chosen for such a call."""
        require(isinstance(choice, Choice), "an algorithm that was not chosen here")
        require(choice.problem == problem, f"chosen for {choice.problem}, used for {problem}")
        require(choice.cols == cols or not self.one_size, "another size", NOT_SUPPORTED)
        for name, at, one, least in zip("ABCD", addresses, stored, choice.boundaries):
            stride = one.stride * one.dtype.itemsize if one.batch > 1 else 0
            for start in (at, at + stride):
                why = f"{name} is at {start:#x}, chosen for a boundary of {least}"
                require(start % least == 0, why)
        if operation[7] & BIAS:
            at, least = operation[8], choice.bias_boundary
            require(at % least == 0, f"the bias is at {at:#x}, chosen for a boundary of {least}")

    def _product(self, operation, stored, addresses, alpha, beta, choice):
        """epilogue(alpha op(A) op(B) + beta C) in float32: (batch, rows, cols)."""
        with np.errstate(over="ignore", invalid="ignore"):
            a, b = (
                one.view(self._memory.read(at, one.elements, one.dtype)).astype(np.float32)
                for one, at in zip(stored[:2], addresses)
            )
            if operation[0] == COMPUTE_32F_FAST_TF32:
                a, b = to_tf32(a), to_tf32(b)
            a = a.swapaxes(1, 2) if operation[3] else a
            b = b.swapaxes(1, 2) if operation[4] else b
            half = a.shape[2] // 2 if choice.workspace_bytes else 0
            parts = [np.matmul(a[:, :, :half], b[:, :half]), np.matmul(a[:, :, half:], b[:, half:])]
            if choice.splits_in_output_type:
                parts = [part.astype(stored[3].dtype).astype(np.float32) for part in parts]
            total = np.float32(alpha) * (parts[0] + parts[1])
            if beta:
                c = self._memory.read(addresses[2], stored[2].elements, stored[2].dtype)
                total = total + np.float32(beta) * stored[2].view(c).astype(np.float32)
            if operation[7] & BIAS:
                bias = self._memory.read(operation[8], stored[3].rows, stored[3].dtype)
                total = total + bias.astype(np.float32)[:, None]
            if operation[7] & RELU:
                total = np.maximum(total, 0)
            if operation[7] & GELU:
                inner = np.float32((2 / np.pi) ** 0.5) * (total + np.float32(0.044715) * total**3)
                total = np.float32(0.5) * total * (1 + np.tanh(inner))
        return total
