"""Faults in bands, forward operations, pooling, memory and the trait."""

from __future__ import annotations

from tests.mutants.fault import Fault

BAND = "drivers/numpy/banded.py"
MEMORY = "drivers/numpy/driver.py"
POOLS = "drivers/numpy/pooling.py"
FORWARD = "drivers/forward_ops.py"
HEADS = "drivers/numpy/attention.py"
LONG = "drivers/numpy/long_attention.py"

BANDS = (
    Fault(
        "even band omits the left edge",
        BAND,
        "first = start - window // 2",
        "first = start - (window - 1) // 2",
        "banded",
    ),
    Fault(
        "keys outside score zero",
        BAND,
        "np.full((groups, count, count + window - 1), -np.inf, np.float32)",
        "np.zeros((groups, count, count + window - 1), np.float32)",
        "banded",
    ),
    Fault(
        "first padded key let through",
        BAND,
        "key >= np.asarray(seq_lengths)[:, None, None]",
        "key > np.asarray(seq_lengths)[:, None, None]",
        "banded",
    ),
    Fault(
        "minus infinity scaled",
        BAND,
        "masked = np.isneginf(y)",
        "masked = np.zeros_like(y, dtype=bool)",
        "banded",
    ),
    Fault("band not scaled", BAND, "y *= np.float32(scale)", "y *= np.float32(1)", "banded"),
    Fault(
        "weights summed outside the band",
        BAND,
        "np.zeros((groups, count, count + window - 1), np.float32)",
        "np.ones((groups, count, count + window - 1), np.float32)",
        "banded",
    ),
    Fault(
        "band over padded keys",
        FORWARD,
        "scale=scale, seq_lengths=lengths, out=scores)",
        "scale=scale, out=scores)",
        "attention_options",
    ),
    Fault(
        "band one key short", FORWARD, "return 2 * left + 1", "return 2 * left", "attention_options"
    ),
    Fault(
        "bias lost in a band",
        FORWARD,
        "left != right or position_bias is not None",
        "left != right",
        "attention_options",
    ),
)

FORWARDS = (
    Fault(
        "scale of the hidden size",
        FORWARD,
        "scale = head_dim**-0.5 if scale is None else scale",
        "scale = (num_heads * head_dim) ** -0.5 if scale is None else scale",
        "forward_ops",
    ),
    Fault(
        "given scale ignored",
        FORWARD,
        "scale = head_dim**-0.5 if scale is None else scale",
        "scale = head_dim**-0.5",
        "forward_ops",
    ),
    Fault(
        "causal sees the next token",
        FORWARD,
        "0 if causal else window_right",
        "1 if causal else window_right",
        "attention_options",
    ),
    Fault(
        "causal left out",
        FORWARD,
        "window_right = 0 if causal else window_right",
        "pass",
        "attention_options",
    ),
    Fault(
        "norm of k by the weight of q",
        FORWARD,
        "k = self.rms_norm(k, qk_norm.k_weight,",
        "k = self.rms_norm(k, qk_norm.q_weight,",
        "attention_options",
    ),
    Fault(
        "k not rotated",
        FORWARD,
        "k = self.apply_rope(k, rope.cos, rope.sin, out=k)",
        "pass",
        "attention_options",
    ),
    Fault(
        "scores in float16",
        FORWARD,
        "scores = self.alloc_zeros((q.shape[0], max_seq, max_seq), FLOAT32)",
        "scores = self.alloc_zeros((q.shape[0], max_seq, max_seq), q.dtype)",
        "forward_ops",
    ),
    Fault(
        "table of the wrong ids",
        FORWARD,
        "self.add_embeddings(x, entry.table, getattr(batch, entry.ids), out=x)",
        "self.add_embeddings(x, entry.table, getattr(batch, first.ids), out=x)",
        "forward_ops",
    ),
    Fault(
        "weights counted from zero", FORWARD, "kept * (position + 1)", "kept * position", "pooling"
    ),
    Fault("skipped tokens pooled", FORWARD, "(position >= skip[:, None]) & ", "", "pooling"),
    Fault(
        "last token but one", FORWARD, "else ends - 1", "else np.maximum(ends - 2, 0)", "pooling"
    ),
    Fault(
        "padding pooled",
        POOLS,
        "total = mask.sum(axis=1, keepdims=True)",
        "total = np.full((len(mask), 1), mask.shape[1], np.float32)",
        "pooling",
    ),
    Fault(
        "poison pooled",
        POOLS,
        "kept = np.where((mask != 0)[:, :, None], float32(hidden), np.float32(0))",
        "kept = float32(hidden)",
        "pooling",
    ),
    Fault(
        "maximum above zero", POOLS, "initial=-np.inf, out=out)", "initial=0, out=out)", "pooling"
    ),
    Fault(
        "normalised before the cut",
        FORWARD,
        "np.linalg.norm(pooled, axis=1, keepdims=True)",
        "np.linalg.norm(np.concatenate(columns, axis=1), axis=1, keepdims=True)",
        "pooling",
    ),
    Fault(
        "id one behind the table", MEMORY, "(ids >= len(table))", "(ids > len(table))", "lookups"
    ),
    Fault(
        "look-up not added",
        MEMORY,
        "float32(hidden) + float32(table[ids])",
        "float32(table[ids])",
        "lookups",
    ),
    Fault("memory lent twice", "drivers/numpy/pool.py", "if loan() is None]", "]", "memory_pool"),
    Fault(
        "memory never used again",
        "drivers/numpy/pool.py",
        "self._free += [",
        "_ = [",
        "memory_pool",
    ),
    Fault(
        "memory kept after the batch",
        MEMORY,
        "        self.pool_memory.clear()\n",
        "",
        "memory_pool",
    ),
    Fault(
        "used memory taken for zeros",
        "drivers/numpy/pool.py",
        "        array.fill(0)\n",
        "",
        "memory_pool",
    ),
    Fault(
        "half the operations",
        "drivers/null/arithmetic.py",
        'flops_total += 2 * prod(shape) * a.shape[-1]\n        return self._new("gemm",',
        'flops_total += prod(shape) * a.shape[-1]\n        return self._new("gemm",',
        "null",
    ),
    Fault(
        "an alias that takes float32",
        "drivers/trait.py",
        '_require_f16("gemm_f16", a=a, b=b, out=out)',
        '_require_f16("gemm_f16", out=out)',
        "trait",
    ),
    Fault(
        "a method of the trait missing",
        "drivers/trait.py",
        "    def geglu_f16(",
        "    def geglu_half(",
        "trait",
    ),
)

PARTS = (
    Fault(
        "a block sees one key less before it",
        LONG,
        "max(0, start - left)",
        "max(0, start - left + 1)",
        "long_attention",
    ),
    Fault(
        "a block sees one key less after it",
        LONG,
        "min(length, stop + right)",
        "min(length, stop + right - 1)",
        "long_attention",
    ),
    Fault(
        "bias of the first queries for every block",
        LONG,
        "bias[own, queries, keys]",
        "bias[own, : queries.stop - queries.start, keys]",
        "long_attention",
    ),
    Fault(
        "bias of the first heads for every key head",
        LONG,
        "bias[own, queries, keys]",
        "bias[:shared, queries, keys]",
        "long_attention",
    ),
    Fault(
        "windows of the first block for every block",
        HEADS,
        "ahead = queries.start - keys.start",
        "ahead = 0",
        "long_attention",
    ),
    Fault(
        "padding seen by later sequences",
        LONG,
        "attn_mask=batch.attn_mask[some]",
        "attn_mask=batch.attn_mask[: len(batch.seq_lengths[some])]",
        "long_attention",
    ),
    Fault(
        "scores beyond the limit",
        LONG,
        "self.max_score_bytes // (4 * shared * length)",
        "length",
        "long_attention",
    ),
)
