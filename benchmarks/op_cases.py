"""What ops.py times: the forward operations with the shapes of known models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drivers.cpu import CpuDriver
from drivers.types import Activation, Encoding, NormWeights

TOKENS = 512
LINEAR: dict[str, list[tuple[int, int, Activation | None]]] = {  # depth, columns, activation
    "MiniLM": [
        (384, 1152, None),
        (384, 384, None),
        (384, 1536, None),
        (384, 1536, "gelu"),
        (1536, 384, None),
    ],
    "BGE-base": [
        (768, 2304, None),
        (768, 768, None),
        (768, 3072, None),
        (768, 3072, "gelu"),
        (3072, 768, None),
    ],
}
GATED: dict[str, tuple[int, int, Activation]] = {"ModernBERT-base": (768, 1152, "gelu")}
HEADS = {"MiniLM": (12, 32), "BGE-base": (12, 64)}
LENGTHS = (46, 89, 128, 512)
NORMS = {"MiniLM": 384, "BGE-base": 768}

Call = Callable[[], object]


class Case(NamedTuple):
    """One thing to time. work: floating-point operations of a call, or bytes where it is a norm.

    blas: the same product in NumPy.
    """

    operation: str
    shape: str
    work: float
    call: Call
    blas: Call | None = None

    @property
    def unit(self) -> str:
        return "GB/s" if self.operation == "add_norm" else "GFLOP/s"


class Cases:
    """All cases in one dtype; each makes its tensors when its turn comes."""

    def __init__(self, driver: CpuDriver, dtype: np.dtype[Any]) -> None:
        self._driver = driver
        self._dtype = dtype
        self._rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Case]:
        for model, layers in LINEAR.items():
            for depth, cols, act in layers:
                yield self.linear(model, depth, cols, act)
        for model, (depth, cols, gate) in GATED.items():
            yield self.gated_linear(model, depth, cols, gate)
        for model, (heads, head_dim) in HEADS.items():
            for length in LENGTHS:
                yield self.attention(model, length, heads, head_dim)
        for model, width in NORMS.items():
            yield self.add_norm(model, width)

    def linear(self, model: str, depth: int, cols: int, act: Activation | None) -> Case:
        x, weight = self._values(TOKENS, depth), self._weight(cols, depth)
        tokens = self._on_device(x)
        packed = self._driver.pack(weight, "linear", self._dtype)
        bias = self._vector(cols)
        return Case(
            "linear",
            f"{model}, {depth} to {cols}" + (f", {act}" if act else ""),
            2.0 * TOKENS * depth * cols,
            lambda: self._driver.linear(tokens, packed, bias, act=act),
            lambda: x @ weight.T,
        )

    def gated_linear(self, model: str, depth: int, cols: int, act: Activation) -> Case:
        x, weight = self._values(TOKENS, depth), self._weight(2 * cols, depth)
        tokens = self._on_device(x)
        packed = self._driver.pack(weight, "gated", self._dtype)
        return Case(
            "gated_linear",
            f"{model}, {depth} to 2 x {cols}, {act}",
            2.0 * TOKENS * depth * 2 * cols,
            lambda: self._driver.gated_linear(tokens, packed, act=act),
            lambda: x @ weight.T,
        )

    def attention(self, model: str, length: int, heads: int, head_dim: int) -> Case:
        """As many sequences as TOKENS has room for."""
        rows = max(1, TOKENS // length)
        encodings = [Encoding(np.zeros(length, np.int32)) for _ in range(rows)]
        batch = self._driver.prepare_batch_unpadded(encodings)
        qkv = self._on_device(self._values(rows * length, 3 * heads * head_dim))
        return Case(
            "attention",
            f"{model}, {rows} x {length}, {heads} heads of {head_dim}",
            4.0 * rows * length**2 * heads * head_dim,
            lambda: self._driver.attention(qkv, batch, num_heads=heads),
        )

    def add_norm(self, model: str, width: int) -> Case:
        x, residual = (self._on_device(self._values(TOKENS, width)) for _ in range(2))
        norm = NormWeights(self._vector(width), self._vector(width), 1e-12)
        return Case(
            "add_norm",
            f"{model}, {width}",
            3.0 * TOKENS * width * self._dtype.itemsize,
            lambda: self._driver.add_norm(x, residual, norm),
        )

    def _values(self, *shape: int) -> NDArray[np.float32]:
        return self._rng.standard_normal(shape, np.float32)

    def _weight(self, rows: int, depth: int) -> NDArray[np.float32]:
        return self._values(rows, depth) * np.float32(depth**-0.5)

    def _vector(self, size: int) -> Any:
        return self._driver.pack(self._values(size), "vector", self._dtype)

    def _on_device(self, host: NDArray[np.float32]) -> Any:
        return self._driver.from_host(host.astype(self._dtype))
