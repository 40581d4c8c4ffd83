"""Matrix products of the CUDA driver, and the linear layers that they are most of."""

from __future__ import annotations

from drivers import shapes
from drivers.activations import require_activation
from drivers.cuda.device import Array, Device
from drivers.cuda.elementwise import CudaElementwise
from drivers.cuda.gates import CudaGates
from drivers.cuda.matmul import Matmul, NoAlgorithm
from drivers.cuda.storage import require_storage
from drivers.dtypes import FLOAT32
from drivers.types import Activation


class CudaProducts(CudaElementwise, CudaGates):
    """The products of `drivers.primitives.arithmetic.Products`, `linear` and `gated_linear`.

    `flops_total` counts the products' floating point operations, `activation_bytes_total` what
    these operations read and wrote of tensors that are not weights, and `unfused_total` the layers
    that cublasLt has no fused kernel for, so that they took a launch more.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.flops_total = 0
        self.activation_bytes_total = 0
        self.unfused_total = 0
        self._matmul = Matmul(device)

    def gemm(
        self, a: Array, b: Array, *, transpose_b: bool = False, out: Array | None = None
    ) -> Array:
        shape = shapes.gemm("gemm", a.shape, b.shape, transpose_b)
        require_storage("gemm", a, b)
        out = self._out("gemm", out, shape, a.dtype)
        self._product("gemm", a, b, out, transpose_b=transpose_b)
        return out

    def gemm_batched(
        self, a: Array, b: Array, *, transpose_b: bool = False, out: Array | None = None
    ) -> Array:
        op = "gemm_batched"
        shape = shapes.gemm_batched(op, a.shape, b.shape, transpose_b)
        require_storage(op, a, b)
        out = self._out(op, out, shape, a.dtype)
        if out.size:
            # the rows of the groups that share one of b are one taller group
            groups, rows = b.shape[0], a.shape[0] // b.shape[0] * a.shape[1]
            tall = a.reshape(groups, rows, a.shape[2])
            self._product(op, tall, b, out.reshape(groups, rows, shape[2]), transpose_b=transpose_b)
            self._count_bytes(b)
        return out

    def linear(
        self,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        *,
        act: Activation | None = None,
        residual: Array | None = None,
    ) -> Array:
        """One launch; with an activation two, the second adds bias and residual.

        The gelu of cublasLt is the tanh form, and may be as coarse as float16: it serves
        `gelu_tanh` in 16 bits.
        """
        op = "linear"
        shape = self._require_layer(op, x, weight, bias)
        if residual is not None:
            shapes.require(op, "residual", residual.shape, shape)
            require_storage(op, residual)
        if act is not None:
            require_activation(op, act)
        out = self._empty(shape, x.dtype)
        if act is None and bias is None and residual is None:
            self._product(op, x, weight, out, transpose_b=True)
            return out
        if self._fuses(x, weight, bias, act, residual):
            try:
                self._product(
                    op,
                    x,
                    weight,
                    out,
                    transpose_b=True,
                    bias=bias,
                    gelu_tanh=act == "gelu_tanh",
                    residual=residual,
                )
                return out
            except NoAlgorithm:
                self.unfused_total += 1
        self._product(op, x, weight, out, transpose_b=True)
        self._count_bytes(out, out, residual)
        return self._elementwise(op, out, bias=bias, act=act, residual=residual, out=out)

    def _fuses(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        act: Activation | None,
        residual: Array | None,
    ) -> bool:
        """Whether a product of cublasLt can do all of a layer."""
        one_type = all(
            given is None or given.dtype == x.dtype for given in (weight, bias, residual)
        )
        gelu_tanh = act == "gelu_tanh" and residual is None and x.dtype != FLOAT32
        return (act is None or gelu_tanh) and one_type and x.shape[1] > 0

    def gated_linear(
        self, x: Array, weight: Array, bias: Array | None = None, *, act: Activation
    ) -> Array:
        """Two launches: the product, then bias, activation and gate."""
        op = "gated_linear"
        shape = self._require_layer(op, x, weight, bias)
        shapes.halves("fused_split_gate", shape)
        require_activation(op, act)
        product = self._empty(shape, x.dtype)
        self._product(op, x, weight, product, transpose_b=True)
        out = self._gate_rows(product, bias, act)
        self._count_bytes(product, out)
        return out

    def _require_layer(
        self, op: str, x: Array, weight: Array, bias: Array | None
    ) -> tuple[int, ...]:
        """Shape (T, out) of a layer's product. Raises ShapeError and DtypeError."""
        shape = shapes.gemm(op, x.shape, weight.shape, transpose_b=True)
        require_storage(op, x, weight)
        if bias is not None:
            shapes.require(op, "bias", bias.shape, shape[1:])
            require_storage(op, bias)
        return shape

    def _product(
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
        """`Matmul` for any sizes and storage types: what cublasLt lacks goes through float32."""
        if out.size == 0:
            return
        if a.shape[-1] == 0:
            self.cast(self.alloc_zeros(out.shape, out.dtype), out.dtype, out=out)
            return
        if a.dtype != b.dtype:
            a, b = (x if x.dtype == FLOAT32 else self.cast(x, FLOAT32) for x in (a, b))
        stored = out if out.dtype in (a.dtype, FLOAT32) else self._empty(out.shape, FLOAT32)
        self._matmul(
            op,
            a,
            b,
            stored,
            transpose_b=transpose_b,
            bias=bias,
            gelu_tanh=gelu_tanh,
            residual=residual,
        )
        self.launches_total += 1
        self.flops_total += 2 * out.size * a.shape[-1]
        self._count_bytes(a, stored, residual)
        if stored is not out:
            self.cast(stored, out.dtype, out=out)

    def _count_bytes(self, *tensors: Array | None) -> None:
        for x in tensors:
            if x is not None:
                self.activation_bytes_total += x.size * x.dtype.itemsize
