"""CpuDriver: NumPy's primitives, and the forward operations in native code, by instruction set."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeGuard, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from drivers import shapes
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
from drivers.cpu.memory import aligned_empty
from drivers.cpu.native_module import native_module, open_kernels
from drivers.cpu.packed import PackedLinear, pack_linear
from drivers.cpu.tile_ops import TileOps, float32
from drivers.cpu.tiles import PackedTiles, fits_tiles
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.errors import DriverError, ShapeError
from drivers.numpy import NumpyDriver
from drivers.numpy.base import Array
from drivers.numpy.driver import check_ids
from drivers.types import (
    Activation,
    BatchInputs,
    EmbeddingTable,
    NormOrder,
    NormWeights,
    PoolMode,
    QkNorm,
    Rope,
    WeightRole,
)

logger = logging.getLogger(__name__)

BFLOAT16_FIRST = ("avx512_bf16",)  # sets whose default is bfloat16; on AMX it has not run yet


class CpuDriver(NumpyDriver):
    """The NumPy driver with the forward operations in native code.

    Where the instruction set has tiles, also in bfloat16: products and attention in bf16 with
    float32 sums, on tensors of its own (drivers/cpu/tiles.py). It is the default where it has run
    and is the faster one (BFLOAT16_FIRST).

    A single-threaded driver: several clones in several threads use several cores, for native code
    runs without the interpreter's lock. What no kernel does (float16 storage) is composed from
    NumPy's primitives, counted in `composed_calls` and logged once an operation; native calls are
    counted in `native_calls`. A row's result has the same bits whatever the batch.

    instruction_set: one of those that this processor runs, None for the best. Raises DriverError
    where it cannot run it or there is no native module.
    """

    name = "cpu"
    preferred_tokens = 512

    def __init__(self, instruction_set: str | None = None) -> None:
        super().__init__()
        self.kernels = open_kernels(instruction_set)
        self.native_calls: Counter[str] = Counter()
        self.composed_calls: Counter[str] = Counter()
        self._activations = native_module().Activation
        self._tiles: TileOps | None = None
        if self.kernels.has_tiles:
            self._tiles = TileOps(self, self._activations)
            first = (
                (BFLOAT16, FLOAT32) if self.kernels.name in BFLOAT16_FIRST else (FLOAT32, BFLOAT16)
            )
            self.dtypes = (*first, FLOAT16)
        self._asked_for = instruction_set
        if instruction_set is not None:
            self.name = f"cpu:{instruction_set}"

    @property
    def instruction_set(self) -> str:
        """The instruction set that the kernels are of."""
        return self.kernels.name

    def new_for_clone(self) -> CpuDriver:
        return CpuDriver(self._asked_for)

    def __reduce__(self) -> tuple[type[CpuDriver], tuple[str | None]]:
        return CpuDriver, (self._asked_for,)  # where it arrives it takes what that machine has

    def from_host(self, array: Array) -> Any:
        if self._tiles is not None and array.dtype == BFLOAT16:
            return self._tiles.from_host(array)
        return super().from_host(array)

    def to_host(self, x: Any) -> Array:
        host: Array = x.unpacked() if isinstance(x, PackedLinear) else float32(x)
        return host

    def pack(self, weight: NDArray[Any], role: WeightRole, dtype: DTypeLike) -> Any:
        in_tiles = self._tiles is not None and np.dtype(dtype) == BFLOAT16
        host = super().pack(weight, role, FLOAT32 if in_tiles else dtype)
        if not np.isfinite(host).all():
            raise DriverError(
                f"pack: a weight of shape {host.shape} has values that are not finite"
            )
        if role == "gated" and len(host) % 2 and host.dtype == FLOAT32:
            raise ShapeError(f"pack: a gated weight has two halves, not {len(host)} rows")
        if self._tiles is not None and in_tiles:
            return self._tiles.pack(host, role)
        if role in ("table", "vector") or host.dtype != FLOAT32:
            return host
        return pack_linear(self.kernels, plain(host), gated=role == "gated")

    def packed_layout(self, dtype: DTypeLike) -> str | None:
        panels = f"float32-{2 * self.kernels.lanes}"
        if self._tiles is not None and np.dtype(dtype) == BFLOAT16:
            return f"bfloat16-tiles-{panels}"  # what fits no tile is in float32's panels
        return panels if np.dtype(dtype) == FLOAT32 else None

    def packed_values(self, packed: Any) -> NDArray[Any]:
        if isinstance(packed, PackedTiles):
            return packed.bits
        if not isinstance(packed, PackedLinear):
            raise DriverError(f"{self.name}: not a packed linear weight: {type(packed).__name__}")
        return packed.panels

    def from_packed(
        self, values: NDArray[Any], shape: tuple[int, ...], role: WeightRole, dtype: DTypeLike
    ) -> Any:
        rows, depth = shape
        gated = role == "gated"
        if self._tiles is not None and np.dtype(dtype) == BFLOAT16 and fits_tiles(shape, gated):
            return self._tiles.from_packed(values, (rows, depth), gated)
        want = self.kernels.packed_size(rows, depth, gated)
        if values.shape != (want,) or values.dtype != FLOAT32:
            raise ShapeError(
                f"from_packed: {values.dtype} {values.shape} for a weight {shape}, wanted float32 "
                f"({want},)"
            )
        return PackedLinear((rows, depth), values, gated, self.kernels.lanes)

    # ---- tokens

    def embed(
        self,
        batch: BatchInputs[Array],
        tables: Sequence[EmbeddingTable[Array]],
        norm: NormWeights[Array] | None = None,
    ) -> Any:
        if self._tiles is not None and self._tiles.takes(*(entry.table for entry in tables)):
            return self._tiles.embed(batch, tables, norm)
        width = tables[0].table.shape[-1] if tables else 0
        if not (
            tables
            and all(is_floats(entry.table, (None, width)) for entry in tables)
            and (norm is None or norm_fits(norm, width))
        ):
            self.count_composed("embed")
            return super().embed(batch, tables, norm)
        ids = [getattr(batch, entry.ids) for entry in tables]
        for rows, entry in zip(ids, tables):
            check_ids("embed", rows, entry.table)
            shapes.require("embed", "ids", rows.shape, ids[0].shape)
        self.native_calls["embed"] += 1
        out = self._new((len(ids[0]), width))  # (T, E)
        self.kernels.embed(
            [plain(entry.table) for entry in tables],
            [plain(rows) for rows in ids],
            None if norm is None else plain(norm.weight),
            None if norm is None else plain(norm.bias),
            0.0 if norm is None else norm.eps,
            norm is not None and norm.kind == "layer",
            out,
        )
        return out

    def linear(
        self,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        *,
        act: Activation | None = None,
        residual: Array | None = None,
    ) -> Any:
        if self._tiles is not None and self._tiles.takes(x, weight, residual):
            return self._tiles.linear(
                "linear", x, weight, bias, gated=False, act=act, residual=residual
            )
        if not (
            self._takes(weight, gated=False)
            and is_floats(x, (None, weight.shape[1]))
            and (bias is None or is_floats(bias, (weight.shape[0],)))
            and (residual is None or is_floats(residual, (len(x), weight.shape[0])))
        ):
            self.count_composed("linear")
            return super().linear(x, self.to_host(weight), bias, act=act, residual=residual)
        return self._linear("linear", x, weight, bias, act, residual, weight.shape[0])

    def gated_linear(
        self, x: Array, weight: Array, bias: Array | None = None, *, act: Activation
    ) -> Any:
        if self._tiles is not None and self._tiles.takes(x, weight):
            return self._tiles.linear("gated_linear", x, weight, bias, gated=True, act=act)
        if not (
            self._takes(weight, gated=True)
            and is_floats(x, (None, weight.shape[1]))
            and (bias is None or is_floats(bias, (weight.shape[0],)))
        ):
            self.count_composed("gated_linear")
            joined = super().linear(x, self.to_host(weight), bias)  # (T, 2F)
            return self.fused_split_gate(joined, act)  # (T, F)
        return self._linear("gated_linear", x, weight, bias, act, None, weight.shape[0] // 2)

    def _linear(
        self,
        op: str,
        x: Array,
        weight: PackedLinear,
        bias: Array | None,
        act: Activation | None,
        residual: Array | None,
        width: int,
    ) -> Array:
        if act is not None:
            require_activation(op, act)
        self.native_calls[op] += 1
        out = self._new((len(x), width))  # (T, width)
        self.kernels.linear(
            plain(x),
            weight.panels,
            plain(bias),
            plain(residual),
            getattr(self._activations, act or "none"),
            weight.gated,
            out,
        )
        return out

    def add_norm(
        self,
        x: Array,
        residual: Array | None,
        norm: NormWeights[Array],
        *,
        order: NormOrder = "pre",
    ) -> Any:
        if (
            self._tiles is not None
            and self._tiles.takes(x, residual)
            and order in get_args(NormOrder)
        ):
            return self._tiles.add_norm(x, residual, norm, order)
        if not (
            is_floats(x, (None, None))
            and (residual is None or is_floats(residual, x.shape))
            and norm_fits(norm, x.shape[1])
            and order in get_args(NormOrder)
        ):
            self.count_composed("add_norm")
            return super().add_norm(x, residual, norm, order=order)
        self.native_calls["add_norm"] += 1
        out = self._new(x.shape)  # (T, E)
        self.kernels.add_norm(
            plain(x),
            plain(residual),
            plain(norm.weight),
            plain(norm.bias),
            norm.eps,
            norm.kind == "layer",
            order == "sandwich",
            out,
        )
        return out

    # ---- sequences

    def attention(
        self,
        qkv: Array,
        batch: BatchInputs[Array],
        *,
        num_heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        rope: Rope[Array] | None = None,
        qk_norm: QkNorm[Array] | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        causal: bool = False,
        position_bias: Array | None = None,
    ) -> Any:
        shapes.flat_batch("attention", qkv.shape, batch)
        shapes.reach("attention", window_left, window_right)
        kv_heads, head_dim = shapes.qkv("attention", qkv.shape, num_heads, kv_heads, head_dim)
        scale = head_dim**-0.5 if scale is None else scale
        window_right = 0 if causal else window_right
        options: dict[str, Any] = {
            "num_heads": num_heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "scale": scale,
            "rope": rope,
            "qk_norm": qk_norm,
            "window_left": window_left,
            "window_right": window_right,
            "position_bias": position_bias,
        }
        if self._tiles is not None and self._tiles.takes(qkv):
            return self._tiles.attention(qkv, batch, **options)
        sequences, longest = batch.batch, batch.max_seq
        if not (
            is_floats(qkv, (None, None))
            and (rope is None or rope_fits(rope, sequences, longest, head_dim))
            and (qk_norm is None or qk_norm_fits(qk_norm, head_dim))
            and (position_bias is None or bias_fits(position_bias, num_heads, longest))
        ):
            self.count_composed("attention")
            return super().attention(qkv, batch, **options)
        self.native_calls["attention"] += 1
        out = self._new((len(qkv), num_heads * head_dim))  # (T, N D)
        self.kernels.attention(
            plain(qkv),
            bounds_of("attention", batch),
            num_heads,
            kv_heads,
            head_dim,
            scale,
            None if rope is None else rope_table(rope.cos),
            None if rope is None else rope_table(rope.sin),
            None if qk_norm is None else plain(qk_norm.q_weight),
            None if qk_norm is None else plain(qk_norm.k_weight),
            0.0 if qk_norm is None else qk_norm.eps,
            -1 if window_left is None else min(window_left, longest),
            -1 if window_right is None else min(window_right, longest),
            plain(position_bias),
            out,
        )
        return out

    def _pool_one(self, x: Any, batch: BatchInputs[Array], mode: PoolMode) -> NDArray[np.float32]:
        x = float32(x)
        if mode in ("cls", "last"):  # rows as they are, which no kernel takes faster
            return super()._pool_one(x, batch, mode)
        if not is_floats(x, (None, None)):
            self.count_composed("pool")
            return super()._pool_one(x, batch, mode)
        bounds = bounds_of("pool", batch)  # (B + 1,)
        self.native_calls["pool"] += 1
        out = np.empty((batch.batch, x.shape[1]), np.float32)  # (B, E)
        lengths, skip = np.asarray(batch.seq_lengths), np.asarray(batch.pool_skip)  # (B,)
        starts = bounds[:-1] + skip.astype(np.int32)  # (B,)
        if mode == "max":
            self.kernels.max_rows(plain(x), starts, bounds[1:], out)
            return out
        position = np.arange(len(x)) - np.repeat(bounds[:-1], lengths)  # (T,)
        weights = (position >= np.repeat(skip, lengths)).astype(np.float32)  # (T,)
        if mode == "weighted_mean":
            weights *= position + 1
        self.kernels.mean_rows(plain(x), bounds, weights, out)
        if mode == "mean_sqrt_len":
            out *= np.sqrt((lengths - skip)[:, None].astype(np.float32))
        return out

    def _takes(self, weight: Any, *, gated: bool) -> TypeGuard[PackedLinear]:
        """Whether it is packed for this operation, by an instruction set of the same width."""
        return (
            isinstance(weight, PackedLinear)
            and weight.gated == gated
            and weight.lanes == self.kernels.lanes
        )

    def _new(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return aligned_empty(shape, FLOAT32, self.pool_memory)

    def count_composed(self, op: str, instead: str = "it is composed from primitives") -> None:
        """Count, and once log, a call that no kernel takes as it is, and what is done instead."""
        if not self.composed_calls[op]:
            logger.info("%s: no kernel for this %s; %s", self.name, op, instead)
        self.composed_calls[op] += 1
