"""The forward operations in bfloat16 on tiles; what they do not take is computed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from drivers.activations import require_activation
from drivers.cpu.arguments import (
    bias_fits,
    bounds_of,
    is_floats,
    norm_fits,
    plain,
    qk_norm_fits,
    rope_fits,
    rope_table,
)
from drivers.cpu.packed import pack_linear
from drivers.cpu.tiles import (
    BLOCK,
    HEAD_DIMS,
    UINT16,
    Operand,
    PackedTiles,
    Product,
    TileSpace,
    Tokens,
    TokenTable,
    fits_tiles,
)
from drivers.dtypes import BFLOAT16, FLOAT32
from drivers.errors import DriverError, DtypeError, ShapeError
from drivers.numpy.base import Array
from drivers.numpy.driver import check_ids
from drivers.types import (
    Activation,
    BatchInputs,
    EmbeddingTable,
    NormOrder,
    NormWeights,
    QkNorm,
    Rope,
    WeightRole,
)

if TYPE_CHECKING:
    from drivers.cpu.driver import CpuDriver

BFLOAT16_MAX = 3.3895314e38  # a float32 beyond it is rounded to infinity
IN_FLOAT32 = "it is computed in float32"


class TileOps:
    """The bfloat16 half of a CpuDriver whose instruction set has tiles.

    Biases, norms and tables stay float32; sums are float32, and so is what a residual is added to.
    Each method is the driver's own of that name, for tensors that `takes` is true of.
    """

    def __init__(self, driver: CpuDriver, activations: Any) -> None:
        self._driver = driver
        self.space = TileSpace(driver.kernels, driver.pool_memory, activations)

    @staticmethod
    def takes(*tensors: Any) -> bool:
        """Whether one of them is of the bfloat16 mode."""
        return any(getattr(x, "dtype", None) == BFLOAT16 for x in tensors)

    # ---- memory

    def pack(self, host: NDArray[np.float32], role: WeightRole) -> Any:
        """host: finite, of the right rank, and with an even number of rows where it is gated."""
        if role == "vector":
            return host
        if role == "table":
            return TokenTable(plain(host))
        gated = role == "gated"
        if not fits_tiles(host.shape, gated):
            return pack_linear(self.space.kernels, plain(host), gated=gated)
        if host.size and float(np.abs(host).max()) > BFLOAT16_MAX:
            raise DriverError(
                f"pack: a weight of shape {host.shape} reaches beyond bfloat16 ({BFLOAT16_MAX:g})"
            )
        return self.space.pack(plain(host), gated=gated)

    def from_packed(self, values: NDArray[Any], shape: tuple[int, int], gated: bool) -> PackedTiles:
        """The bits of a packed weight of that shape as it was; no copy."""
        want = shape[0] * shape[1]
        if values.shape != (want,) or values.dtype != UINT16:
            raise ShapeError(
                f"from_packed: {values.dtype} {values.shape} for a weight {shape}, wanted uint16 "
                f"({want},)"
            )
        return PackedTiles(shape, values, gated)

    def from_host(self, array: NDArray[Any]) -> Any:
        """bfloat16 values as tokens (T, E), or as a float32 vector."""
        wide = np.ascontiguousarray(array, FLOAT32)
        if array.ndim == 1:
            return wide
        if array.ndim != 2:
            raise DtypeError(f"from_host: bfloat16 of shape {array.shape}, wanted (T, E) or (E,)")
        return Tokens(self.space, (array.shape[0], array.shape[1]), rows=wide)

    # ---- tokens

    def embed(
        self,
        batch: BatchInputs[Array],
        tables: Sequence[EmbeddingTable[Any]],
        norm: NormWeights[Array] | None,
    ) -> Tokens:
        values = [entry.table.values for entry in tables if isinstance(entry.table, TokenTable)]
        width = values[0].shape[1] if values else 0
        if not (
            len(values) == len(tables)
            and all(is_floats(table, (None, width)) for table in values)
            and (norm is None or norm_fits(norm, width))
            and width % BLOCK == 0
            and width
        ):
            self._driver.count_composed("embed", IN_FLOAT32)
            wide = [EmbeddingTable(float32(entry.table), entry.ids) for entry in tables]
            return self._tokens(self._driver.embed(batch, wide, norm))
        ids = [getattr(batch, entry.ids) for entry in tables]
        for rows, table in zip(ids, values):
            check_ids("embed", rows, table)
        self._driver.native_calls["embed"] += 1
        out = self.space.new_rows((len(ids[0]), width))  # (T, E)
        # without a norm, the next operation is one, and reads rows
        tiles = None if norm is None else self.space.new_tiles(*out.shape)
        self.space.kernels.embed_tiles(
            [plain(table) for table in values],
            [plain(rows) for rows in ids],
            *norm_arguments(norm),
            out,
            tiles,
        )
        return Tokens(self.space, out.shape, rows=out, tiles=tiles)

    def linear(
        self,
        op: str,
        x: Any,
        weight: Any,
        bias: Array | None,
        *,
        gated: bool,
        act: Activation | None,
        residual: Any = None,
    ) -> Operand:
        """The driver's `linear`, or with `gated` its `gated_linear`."""
        if not (
            isinstance(weight, PackedTiles)
            and weight.gated == gated
            and self._is_tokens(x, (None, weight.shape[1]))
            and len(x.shape) == 2
            and x.shape[0]
            and (bias is None or is_floats(bias, (weight.shape[0],)))
            and (residual is None or self._is_tokens(residual, (x.shape[0], weight.shape[0])))
            and (residual is None or act is None)
        ):
            self._driver.count_composed(op, IN_FLOAT32)
            options: dict[str, Any] = {"act": act}
            if not gated:
                options["residual"] = float32(residual)
            compute = self._driver.gated_linear if gated else self._driver.linear
            return self._tokens(compute(float32(x), float32(weight), bias, **options))
        if act is not None:
            require_activation(op, act)
        self._driver.native_calls[op] += 1
        operand = x if isinstance(x, (Tokens, Product)) else self._tokens(x)
        product = Product(self.space, operand, weight, plain(bias), act)
        if residual is None:
            return product
        return self._finish(product, float32(residual), None, "pre")

    def add_norm(self, x: Any, residual: Any, norm: NormWeights[Array], order: NormOrder) -> Tokens:
        """The driver's `add_norm`; the order is one that there is."""
        width = x.shape[-1]
        if not (
            self._is_tokens(x, (None, None))
            and (residual is None or self._is_tokens(residual, x.shape))
            and norm_fits(norm, width)
            and x.shape[0]
            and width
            and width % BLOCK == 0
        ):
            self._driver.count_composed("add_norm", IN_FLOAT32)
            rows = self._driver.add_norm(float32(x), float32(residual), norm, order=order)
            return self._tokens(rows)
        self._driver.native_calls["add_norm"] += 1
        other = plain(float32(residual))
        if isinstance(x, Product) and x.waits and x.is_plain:
            return self._finish(x, other, norm, order)
        out, tiles = self.space.new_rows(x.shape), self.space.new_tiles(*x.shape)
        self.space.kernels.norm_rows(
            plain(float32(x)), other, *norm_arguments(norm), order == "sandwich", out, tiles
        )
        return Tokens(self.space, x.shape, rows=out, tiles=tiles)

    def _finish(
        self,
        product: Product,
        residual: Array | None,
        norm: NormWeights[Array] | None,
        order: NormOrder,
    ) -> Tokens:
        """A plain product with its residual and norm: as rows, and with a norm as tiles too.

        Where the product is of another one with an activation or a gate, both run as one.
        """
        kernels, shape = self.space.kernels, product.shape
        out = self.space.new_rows(shape)
        tiles = None if norm is None else self.space.new_tiles(*shape)
        finish = (plain(residual), *norm_arguments(norm), order == "sandwich", out, tiles)
        inner = product.x
        if isinstance(inner, Product) and inner.waits and not inner.is_plain:
            act = self.space.activation(inner.act)
            kernels.ffn(
                inner.x.tiles,
                inner.weight.bits,
                inner.bias,
                act,
                inner.weight.gated,
                product.weight.bits,
                product.bias,
                *finish,
            )
        else:
            kernels.linear_rows(inner.tiles, product.weight.bits, product.bias, *finish)
        return Tokens(self.space, shape, rows=out, tiles=tiles)

    # ---- sequences

    def attention(
        self,
        qkv: Any,
        batch: BatchInputs[Array],
        *,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        rope: Rope[Array] | None,
        qk_norm: QkNorm[Array] | None,
        window_left: int | None,
        window_right: int | None,
        position_bias: Array | None,
    ) -> Tokens:
        """The driver's `attention`, whose shapes are checked; a causal one has window_right 0."""
        longest, tokens = batch.max_seq, qkv.shape[0]
        if not (
            head_dim in HEAD_DIMS
            and (rope is None or rope_fits(rope, batch.batch, longest, head_dim))
            and (qk_norm is None or qk_norm_fits(qk_norm, head_dim))
            and (position_bias is None or bias_fits(position_bias, num_heads, longest))
        ):
            self._driver.count_composed("attention", IN_FLOAT32)
            rows = self._driver.attention(
                float32(qkv),
                batch,
                num_heads=num_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                scale=scale,
                rope=rope,
                qk_norm=qk_norm,
                window_left=window_left,
                window_right=window_right,
                position_bias=position_bias,
            )
            return self._tokens(rows)
        self._driver.native_calls["attention"] += 1
        heads = qkv.heads(head_dim)
        sizes = (bounds_of("attention", batch), num_heads, kv_heads, head_dim)
        if rope is not None or qk_norm is not None:
            self.space.kernels.prepare_heads(
                heads,
                tokens,
                *sizes,
                None if rope is None else rope_table(rope.cos),
                None if rope is None else rope_table(rope.sin),
                None if qk_norm is None else plain(qk_norm.q_weight),
                None if qk_norm is None else plain(qk_norm.k_weight),
                0.0 if qk_norm is None else qk_norm.eps,
            )
        out = self.space.new_tiles(tokens, num_heads * head_dim)
        self.space.kernels.attend_heads(
            heads,
            tokens,
            *sizes,
            scale,
            -1 if window_left is None else window_left,
            -1 if window_right is None else window_right,
            plain(position_bias),
            out,
        )
        return Tokens(self.space, (tokens, num_heads * head_dim), tiles=out)

    # ---- between the two precisions

    @staticmethod
    def _is_tokens(x: Any, shape: tuple[int | None, ...]) -> bool:
        """Whether x is tokens of that shape, or a float32 array of it."""
        if not isinstance(x, (Tokens, Product)):
            return is_floats(x, shape)
        return all(want is None or got == want for got, want in zip(x.shape, shape))

    def _tokens(self, rows: Array) -> Tokens:
        """Float32 rows (T, E) as tokens."""
        return Tokens(self.space, (rows.shape[0], rows.shape[1]), rows=plain(rows))


def float32(x: Any) -> Any:
    """A tensor of the bfloat16 mode as a float32 array; another as it is."""
    if isinstance(x, (Tokens, Product)):
        return x.rows
    if isinstance(x, TokenTable):
        return x.values
    return x.unpacked() if isinstance(x, PackedTiles) else x


def norm_arguments(norm: NormWeights[Array] | None) -> tuple[Any, Any, float, bool]:
    """A norm as kernels take it: weight, bias, eps, and whether it is a layer norm."""
    if norm is None:
        return None, None, 0.0, False
    return plain(norm.weight), plain(norm.bias), norm.eps, norm.kind == "layer"
