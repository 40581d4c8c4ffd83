"""libcublasLt through its C interface: the calls that a product needs, with errors as exceptions.

Numbers and prototypes are those of cublasLt.h, which has kept them since CUDA 11. Matrices are
column-major here, as the library has them; `drivers.cuda.matmul` turns rows into columns.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.errors import DriverError

DATA_TYPES: dict[np.dtype[Any], int] = {FLOAT32: 0, FLOAT16: 2, BFLOAT16: 14}
COMPUTE_32F = 68  # float32 sums; of float32 inputs too, which TF32 would shorten to 10 bits
SCALE_32F = DATA_TYPES[FLOAT32]  # of alpha and beta
TRANSPOSED = 1
REDUCE_IN_COMPUTE_TYPE = 2  # a sum that is split stays float32 until it is whole
STATUS_NOT_SUPPORTED = 15
ONE = c_float(1.0)
CHOOSE = "cublasLtMatmulAlgoGetHeuristic"

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (c_void_p,),
    "cublasLtMatmulDescCreate": (c_void_p, c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceCreate": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    CHOOSE: (*[c_void_p] * 7, c_int, c_void_p, c_void_p),
    "cublasLtMatmul": (*[c_void_p] * 14, c_size_t, c_void_p),
}


class Epilogue(IntEnum):
    """What becomes of a product before it is rounded and stored. GELU is the tanh form."""

    NONE = 1
    BIAS = 4
    GELU = 32
    GELU_BIAS = 36


class OperationAttribute(IntEnum):
    """Attributes of a product that are set here."""

    TRANSPOSE_A = 3
    EPILOGUE = 7
    BIAS_POINTER = 8


class LayoutAttribute(IntEnum):
    """Attributes of a matrix that are set here."""

    COLS = 3
    BATCH_COUNT = 5
    BATCH_STRIDE = 6


class PreferenceAttribute(IntEnum):
    """Attributes of the choice of an algorithm that are set here."""

    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEMES = 3
    ALIGNMENT_A = 5
    ALIGNMENT_B = 6
    ALIGNMENT_C = 7
    ALIGNMENT_D = 8


ALIGNMENTS = tuple(each for each in PreferenceAttribute if each.name.startswith("ALIGNMENT"))


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: how to compute a product."""

    _fields_ = (("data", c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what is known of it."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasLtError(DriverError):
    """A call that the library refused, with its status."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call}: status {status}")
        self.status = status


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix, or `batch` of them `stride` elements apart."""

    dtype: np.dtype[Any]
    rows: int
    cols: int
    batch: int = 1
    stride: int = 0


Layouts: TypeAlias = tuple[c_void_p, c_void_p, c_void_p, c_void_p]
"""Handles of the layouts of A, B, C and D."""


def load() -> ctypes.CDLL:
    """The library of the CUDA toolkit or wheels that CuPy runs on.

    Raises DriverError where there is none.
    """
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        found = load_nvidia_dynamic_lib("cublasLt")
    except DynamicLibNotFoundError as error:
        raise DriverError(
            f"cuda: no libcublasLt, which CuPy's cuBLAS comes with: {error}"
        ) from error
    return ctypes.CDLL(found.abs_path)


class CublasLt:
    """A handle of the library, which lives as long as the process.

    library: libcublasLt as ctypes loads it, or what stands in for it.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, parameters in PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = parameters, c_int
        self._handle = self._created("cublasLtCreate")

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CublasLtError(name, status)

    def _created(self, name: str, *arguments: Any) -> c_void_p:
        """A new object of the library."""
        made = c_void_p()
        self._call(name, byref(made), *arguments)
        return made

    def _set(self, kind: str, of: c_void_p, attribute: IntEnum, value: Any) -> None:
        name = f"cublasLt{kind}SetAttribute"
        self._call(name, of, attribute, byref(value), ctypes.sizeof(value))

    def operation(self, *, transpose_a: bool, epilogue: Epilogue) -> c_void_p:
        """op(A) B with float32 sums and what follows them."""
        made = self._created("cublasLtMatmulDescCreate", COMPUTE_32F, SCALE_32F)
        if transpose_a:
            self._set("MatmulDesc", made, OperationAttribute.TRANSPOSE_A, c_int32(TRANSPOSED))
        self._set("MatmulDesc", made, OperationAttribute.EPILOGUE, c_uint32(epilogue))
        return made

    def set_bias(self, operation: c_void_p, address: int) -> None:
        """The address of the bias, one value for each row of D and of D's dtype."""
        self._set("MatmulDesc", operation, OperationAttribute.BIAS_POINTER, c_void_p(address))

    def layout(self, matrix: Matrix) -> c_void_p:
        """The layout of a matrix without gaps between its columns."""
        kind, rows = DATA_TYPES[matrix.dtype], matrix.rows
        made = self._created("cublasLtMatrixLayoutCreate", kind, rows, matrix.cols, rows)
        if matrix.batch > 1:
            self._set("MatrixLayout", made, LayoutAttribute.BATCH_COUNT, c_int32(matrix.batch))
            self._set("MatrixLayout", made, LayoutAttribute.BATCH_STRIDE, c_int64(matrix.stride))
        return made

    def set_cols(self, layout: c_void_p, cols: int, stride: int | None) -> None:
        """Another number of columns, and with it another stride of a batch."""
        self._set("MatrixLayout", layout, LayoutAttribute.COLS, c_uint64(cols))
        if stride is not None:
            self._set("MatrixLayout", layout, LayoutAttribute.BATCH_STRIDE, c_int64(stride))

    def choose(
        self,
        operation: c_void_p,
        layouts: Layouts,
        boundary: int,
        workspace_bytes: int,
    ) -> Algorithm:
        """The library's first choice for matrices that start at multiples of so many bytes.

        Raises CublasLtError where it has none.
        """
        wanted = self._created("cublasLtMatmulPreferenceCreate")
        settings: dict[PreferenceAttribute, Any] = {
            PreferenceAttribute.MAX_WORKSPACE_BYTES: c_uint64(workspace_bytes),
            PreferenceAttribute.REDUCTION_SCHEMES: c_uint32(REDUCE_IN_COMPUTE_TYPE),
            **{each: c_uint32(boundary) for each in ALIGNMENTS},
        }
        try:
            for attribute, value in settings.items():
                self._set("MatmulPreference", wanted, attribute, value)
            result, found = HeuristicResult(), c_int()
            operands = (operation, *layouts, wanted)
            self._call(CHOOSE, self._handle, *operands, 1, byref(result), byref(found))
        finally:
            self._call("cublasLtMatmulPreferenceDestroy", wanted)
        if found.value == 0 or result.status != 0:
            raise CublasLtError(CHOOSE, result.status or STATUS_NOT_SUPPORTED)
        algorithm: Algorithm = result.algorithm
        return algorithm

    def matmul(
        self,
        operation: c_void_p,
        addresses: tuple[int, int, int, int],
        layouts: Layouts,
        beta: float,
        algorithm: Algorithm,
        workspace: int,
        workspace_bytes: int,
        stream: int,
    ) -> None:
        """D = epilogue(op(A) B + beta C) on the stream; addresses of A, B, C and D, and others."""
        a, b, c, d = addresses
        layout_a, layout_b, layout_c, layout_d = layouts
        product = (a, layout_a, b, layout_b, byref(c_float(beta)), c, layout_c, d, layout_d)
        how = (byref(algorithm), workspace, workspace_bytes, stream)
        self._call("cublasLtMatmul", self._handle, operation, byref(ONE), *product, *how)
