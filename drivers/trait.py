"""The 61 methods of the compute trait: a table of them, and the names that differ from ours.

One Python method serves every storage type, because shape and dtype ride on the tensor. The trait
has a name of its own for most float16 forms; `TraitNames` gives these to every driver, each a
dtype-checked alias of the method that does the work. `docs/DRIVER.md` is made from the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from drivers import dtypes, shapes
from drivers.dtypes import FLOAT16, FLOAT32
from drivers.primitives import Primitives
from drivers.types import T, Tensor

FLOAT = "f32 or f16"
HALF = "f16"
IDS = "int32 ids, f32 or f16 table"
MASKED = "f32 or f16, f32 mask"
POOLED = "f32 or f16 -> f32"
NONE = "-"


class TraitMethod(NamedTuple):
    """One method of the trait: its name there, what does it here, for which dtypes, and why."""

    name: str
    theme: str
    method: str
    dtypes: str
    meaning: str


TRAIT = (
    TraitMethod("alloc_zeros", "memory", "alloc_zeros", FLOAT, "a new tensor of zeros"),
    TraitMethod("alloc_zeros_f16", "memory", "alloc_zeros", HALF, "the same in float16"),
    TraitMethod("clone_tensor", "memory", "clone_tensor", "any", "an independent copy"),
    TraitMethod("f32_to_f16", "memory", "cast", "f32 -> f16", "round to float16"),
    TraitMethod("f16_to_f32", "memory", "cast", "f16 -> f32", "widen to float32"),
    TraitMethod("to_host", "memory", "to_host", "any", "the tensor as a host array"),
    TraitMethod("new_for_clone", "life", "new_for_clone", NONE, "a driver for another worker"),
    TraitMethod("begin_batch", "life", "begin_batch", NONE, "open one dispatch"),
    TraitMethod("end_batch", "life", "end_batch", NONE, "commit it and wait"),
    TraitMethod("flush_batch", "life", "flush_batch", NONE, "commit so far, go on"),
    TraitMethod("segment_encoder", "life", "segment_encoder", NONE, "cut the recording in two"),
    TraitMethod("save_pool_cursor", "life", "save_pool_cursor", NONE, "open a scope of the pool"),
    TraitMethod(
        "restore_pool_cursor", "life", "restore_pool_cursor", NONE, "recycle what it allocated"
    ),
    TraitMethod("prepare_batch", "batches", "prepare_batch", "int32", "upload padded to max_seq"),
    TraitMethod(
        "prepare_batch_unpadded",
        "batches",
        "prepare_batch_unpadded",
        "int32",
        "upload flat, with cu_seqlens",
    ),
    TraitMethod("pad_to_batch", "batches", "pad_to_batch", FLOAT, "(T, dim) -> (B, S, dim)"),
    TraitMethod("pad_to_batch_f16", "batches", "pad_to_batch", HALF, "the same in float16"),
    TraitMethod(
        "unpad_from_batch", "batches", "unpad_from_batch", FLOAT, "(B, S, dim) -> (T, dim)"
    ),
    TraitMethod("unpad_from_batch_f16", "batches", "unpad_from_batch", HALF, "the same in float16"),
    TraitMethod("embedding_lookup", "lookups", "embedding_lookup", IDS, "table[ids]"),
    TraitMethod("add_embeddings", "lookups", "add_embeddings", IDS, "hidden + table[ids]"),
    TraitMethod("gemm", "products", "gemm", FLOAT, "a @ b, or a @ b.T"),
    TraitMethod("gemm_f16", "products", "gemm", HALF, "the same in float16, summed in float32"),
    TraitMethod("gemm_mixed", "products", "gemm", "f16 -> f32", "float16 in, float32 out"),
    TraitMethod("gemm_batched", "products", "gemm_batched", FLOAT, "a product per group"),
    TraitMethod("gemm_batched_f16", "products", "gemm_batched", HALF, "the same in float16"),
    TraitMethod("add_bias", "sums", "add_bias", FLOAT, "x + bias, row by row"),
    TraitMethod("residual_add", "sums", "residual_add", FLOAT, "hidden + residual"),
    TraitMethod("residual_add_f16", "sums", "residual_add", HALF, "the same in float16"),
    TraitMethod("fused_bias_residual", "sums", "fused_bias_residual", FLOAT, "x + bias + residual"),
    TraitMethod("gelu", "activations", "gelu", FLOAT, "x * Phi(x), the erf form"),
    TraitMethod("fused_bias_gelu", "activations", "fused_bias_gelu", FLOAT, "gelu(x + bias)"),
    TraitMethod(
        "split_gate_value", "gates", "split_gate_value", FLOAT, "(rows, 2 F) -> two (rows, F)"
    ),
    TraitMethod("split_gate_value_f16", "gates", "split_gate_value", HALF, "the same in float16"),
    TraitMethod("swiglu", "gates", "swiglu", FLOAT, "value * silu(gate)"),
    TraitMethod("geglu", "gates", "geglu", FLOAT, "gelu(value) * gate"),
    TraitMethod("geglu_f16", "gates", "geglu", HALF, "the same in float16"),
    TraitMethod(
        "fused_split_geglu_f16", "gates", "fused_split_geglu", HALF, "gelu(first) * second half"
    ),
    TraitMethod("layer_norm", "norms", "layer_norm", FLOAT, "(x - mean) / std * weight + bias"),
    TraitMethod("layer_norm_f16", "norms", "layer_norm", HALF, "the same, statistics in float32"),
    TraitMethod(
        "fused_residual_layernorm",
        "norms",
        "fused_residual_layernorm",
        FLOAT,
        "layer_norm(hidden + residual)",
    ),
    TraitMethod(
        "fused_residual_layernorm_f16",
        "norms",
        "fused_residual_layernorm",
        HALF,
        "the same, the sum in float32",
    ),
    TraitMethod("l2_normalize", "norms", "l2_normalize", FLOAT, "x / norm(x); zero stays zero"),
    TraitMethod("build_attn_mask", "attention", "build_attn_mask", "int32 -> f32", "0 or -10000"),
    TraitMethod("qkv_split", "attention", "qkv_split", FLOAT, "(B, S, 3E) -> three (B N, S, D)"),
    TraitMethod("qkv_split_f16", "attention", "qkv_split", HALF, "the same in float16"),
    TraitMethod(
        "fused_pad_qkv_split_f16",
        "attention",
        "fused_pad_qkv_split",
        HALF,
        "(T, 3E) -> three (B N, S, D)",
    ),
    TraitMethod(
        "fused_scale_mask_softmax",
        "attention",
        "fused_scale_mask_softmax",
        MASKED,
        "softmax(scores * scale + mask)",
    ),
    TraitMethod(
        "fused_scale_mask_softmax_f16",
        "attention",
        "fused_scale_mask_softmax",
        "f16, f32 mask",
        "the same, sums in float32",
    ),
    TraitMethod(
        "fused_scale_mask_softmax_windowed",
        "attention",
        "fused_scale_mask_softmax_windowed",
        MASKED,
        "over |query - key| <= W // 2",
    ),
    TraitMethod(
        "fused_scale_mask_softmax_windowed_f16",
        "attention",
        "fused_scale_mask_softmax_windowed",
        "f16, f32 mask",
        "the same, sums in float32",
    ),
    TraitMethod("attn_reshape", "attention", "attn_reshape", FLOAT, "(B N, S, D) -> (B, S, E)"),
    TraitMethod("attn_reshape_f16", "attention", "attn_reshape", HALF, "the same in float16"),
    TraitMethod(
        "fused_reshape_unpad_f16",
        "attention",
        "fused_reshape_unpad",
        HALF,
        "(B N, S, D) -> (T, E)",
    ),
    TraitMethod("banded_qk", "band", "banded_qk", FLOAT, "scores (B N, S, W) near the diagonal"),
    TraitMethod("banded_softmax", "band", "banded_softmax", FLOAT, "softmax over the band"),
    TraitMethod("banded_sv", "band", "banded_sv", FLOAT, "the band's weighted sum of v"),
    TraitMethod(
        "apply_rope", "rotation", "apply_rope", "f32 or f16, f32 tables", "rotate half-split pairs"
    ),
    TraitMethod(
        "rope_encode_f16", "rotation", "apply_rope", "f16, f32 tables", "the same in float16"
    ),
    TraitMethod("cls_pool", "pooling", "cls_pool", POOLED, "the first token"),
    TraitMethod("mean_pool", "pooling", "mean_pool", POOLED, "the mean, weighted by the mask"),
)


def _require_f16(op: str, **tensors: Tensor | Sequence[Tensor] | None) -> None:
    """Refuse tensors, single or in a tuple, that are not float16; None passes."""
    for name, value in tensors.items():
        for x in value if isinstance(value, tuple) else (value,):
            dtypes.require(op, name, x, FLOAT16)


class TraitNames(Primitives[T], Protocol[T]):
    """The trait's own names, where they differ. Each refuses other dtypes with DtypeError.

    Shapes, options and results are those of the method that does the work (`drivers.primitives`).
    Norm weights and biases may be float32 beside float16 rows; masks and rotary tables are float32.
    """

    def alloc_zeros_f16(self, shape: tuple[int, ...]) -> T:
        """`alloc_zeros` in float16."""
        return self.alloc_zeros(shape, FLOAT16)

    def f32_to_f16(self, x: T, *, out: T | None = None) -> T:
        """`cast` from float32 to float16."""
        dtypes.require("f32_to_f16", "x", x, FLOAT32)
        _require_f16("f32_to_f16", out=out)
        return self.cast(x, FLOAT16, out=out)

    def f16_to_f32(self, x: T, *, out: T | None = None) -> T:
        """`cast` from float16 to float32."""
        _require_f16("f16_to_f32", x=x)
        dtypes.require("f16_to_f32", "out", out, FLOAT32)
        return self.cast(x, FLOAT32, out=out)

    def gemm_f16(self, a: T, b: T, *, transpose_b: bool = False, out: T | None = None) -> T:
        """`gemm` of float16 into float16."""
        _require_f16("gemm_f16", a=a, b=b, out=out)
        return self.gemm(a, b, transpose_b=transpose_b, out=out)

    def gemm_mixed(self, a: T, b: T, *, transpose_b: bool = False, out: T | None = None) -> T:
        """`gemm` of float16 into float32."""
        _require_f16("gemm_mixed", a=a, b=b)
        dtypes.require("gemm_mixed", "out", out, FLOAT32)
        if out is None:
            rows, cols = shapes.gemm("gemm_mixed", a.shape, b.shape, transpose_b)
            out = self.alloc_zeros((rows, cols), FLOAT32)
        return self.gemm(a, b, transpose_b=transpose_b, out=out)

    def gemm_batched_f16(self, a: T, b: T, *, transpose_b: bool = False, out: T | None = None) -> T:
        """`gemm_batched` of float16 into float16."""
        _require_f16("gemm_batched_f16", a=a, b=b, out=out)
        return self.gemm_batched(a, b, transpose_b=transpose_b, out=out)

    def layer_norm_f16(
        self, x: T, weight: T, bias: T | None, *, eps: float, out: T | None = None
    ) -> T:
        """`layer_norm` of float16 rows."""
        _require_f16("layer_norm_f16", x=x, out=out)
        return self.layer_norm(x, weight, bias, eps=eps, out=out)

    def fused_residual_layernorm_f16(
        self,
        hidden: T,
        residual: T,
        weight: T,
        bias: T | None,
        *,
        eps: float,
        out: T | None = None,
    ) -> T:
        """`fused_residual_layernorm` of float16 rows."""
        _require_f16("fused_residual_layernorm_f16", hidden=hidden, residual=residual, out=out)
        return self.fused_residual_layernorm(hidden, residual, weight, bias, eps=eps, out=out)

    def residual_add_f16(self, hidden: T, residual: T, *, out: T | None = None) -> T:
        """`residual_add` of float16."""
        _require_f16("residual_add_f16", hidden=hidden, residual=residual, out=out)
        return self.residual_add(hidden, residual, out=out)

    def split_gate_value_f16(self, x: T, *, out: tuple[T, T] | None = None) -> tuple[T, T]:
        """`split_gate_value` of float16."""
        _require_f16("split_gate_value_f16", x=x, out=out)
        return self.split_gate_value(x, out=out)

    def geglu_f16(self, value: T, gate: T, *, out: T | None = None) -> T:
        """`geglu` of float16."""
        _require_f16("geglu_f16", value=value, gate=gate, out=out)
        return self.geglu(value, gate, out=out)

    def fused_split_geglu_f16(self, x: T, *, out: T | None = None) -> T:
        """`fused_split_geglu` of float16."""
        _require_f16("fused_split_geglu_f16", x=x, out=out)
        return self.fused_split_geglu(x, out=out)

    def pad_to_batch_f16(
        self, flat: T, *, seq_lengths: Sequence[int], max_seq: int, out: T | None = None
    ) -> T:
        """`pad_to_batch` of float16."""
        _require_f16("pad_to_batch_f16", flat=flat, out=out)
        return self.pad_to_batch(flat, seq_lengths=seq_lengths, max_seq=max_seq, out=out)

    def unpad_from_batch_f16(
        self, padded: T, *, seq_lengths: Sequence[int], out: T | None = None
    ) -> T:
        """`unpad_from_batch` of float16."""
        _require_f16("unpad_from_batch_f16", padded=padded, out=out)
        return self.unpad_from_batch(padded, seq_lengths=seq_lengths, out=out)

    def qkv_split_f16(
        self, qkv: T, *, num_heads: int, out: tuple[T, T, T] | None = None
    ) -> tuple[T, T, T]:
        """`qkv_split` of float16."""
        _require_f16("qkv_split_f16", qkv=qkv, out=out)
        return self.qkv_split(qkv, num_heads=num_heads, out=out)

    def fused_pad_qkv_split_f16(
        self,
        flat: T,
        *,
        seq_lengths: Sequence[int],
        max_seq: int,
        num_heads: int,
        out: tuple[T, T, T] | None = None,
    ) -> tuple[T, T, T]:
        """`fused_pad_qkv_split` of float16."""
        _require_f16("fused_pad_qkv_split_f16", flat=flat, out=out)
        return self.fused_pad_qkv_split(
            flat, seq_lengths=seq_lengths, max_seq=max_seq, num_heads=num_heads, out=out
        )

    def fused_scale_mask_softmax_f16(
        self, scores: T, mask: T, *, num_heads: int, scale: float, out: T | None = None
    ) -> T:
        """`fused_scale_mask_softmax` of float16 scores with a float32 mask."""
        _require_f16("fused_scale_mask_softmax_f16", scores=scores, out=out)
        return self.fused_scale_mask_softmax(
            scores, mask, num_heads=num_heads, scale=scale, out=out
        )

    def fused_scale_mask_softmax_windowed_f16(
        self,
        scores: T,
        mask: T,
        *,
        num_heads: int,
        scale: float,
        window: int,
        out: T | None = None,
    ) -> T:
        """`fused_scale_mask_softmax_windowed` of float16 scores with a float32 mask."""
        _require_f16("fused_scale_mask_softmax_windowed_f16", scores=scores, out=out)
        return self.fused_scale_mask_softmax_windowed(
            scores, mask, num_heads=num_heads, scale=scale, window=window, out=out
        )

    def attn_reshape_f16(self, heads: T, *, num_heads: int, out: T | None = None) -> T:
        """`attn_reshape` of float16."""
        _require_f16("attn_reshape_f16", heads=heads, out=out)
        return self.attn_reshape(heads, num_heads=num_heads, out=out)

    def fused_reshape_unpad_f16(
        self, heads: T, *, seq_lengths: Sequence[int], num_heads: int, out: T | None = None
    ) -> T:
        """`fused_reshape_unpad` of float16."""
        _require_f16("fused_reshape_unpad_f16", heads=heads, out=out)
        return self.fused_reshape_unpad(
            heads, seq_lengths=seq_lengths, num_heads=num_heads, out=out
        )

    def rope_encode_f16(self, x: T, cos: T, sin: T, *, out: T | None = None) -> T:
        """`apply_rope` of float16 heads with float32 tables."""
        _require_f16("rope_encode_f16", x=x, out=out)
        return self.apply_rope(x, cos, sin, out=out)


def trait_markdown() -> str:
    """The table as a page, theme by theme: the whole of ``docs/DRIVER.md``."""
    lines = [
        "# The driver",
        "",
        f"Every driver has all {len(TRAIT)} methods of the compute trait, under the trait's names.",
        "Sizes are read from the tensors, and so are shape and dtype: where several names share a",
        "method, the others are dtype-checked aliases of it. `drivers/primitives/` says what each",
        "does exactly, and what holds for all of them; `drivers/protocol.py` adds the coarse",
        "operations that models are written in.",
    ]
    for theme in dict.fromkeys(row.theme for row in TRAIT):
        lines += [
            "",
            f"## {theme.capitalize()}",
            "",
            "| trait | method | dtypes | meaning |",
            "|---|---|---|---|",
        ]
        for row in TRAIT:
            if row.theme == theme:
                meaning = row.meaning.replace("|", "\\|")
                lines.append(f"| `{row.name}` | `{row.method}` | {row.dtypes} | {meaning} |")
    return "\n".join(lines) + "\n"
