"""Faults in masks, windows, biases, layouts and rotation."""

from __future__ import annotations

from tests.mutants.fault import Fault

ROWS = "drivers/numpy/rows.py"
HEADS = "drivers/numpy/attention.py"
SPLIT_ORDER = "for part, heads in ((q, num_heads), (k, kv_heads), (v, kv_heads)):"

SOFTMAXES = (
    Fault(
        "mask of exactly -5000 let through",
        ROWS,
        "mask <= MASKED_AT_OR_BELOW",
        "mask < MASKED_AT_OR_BELOW",
        "attention_steps",
    ),
    Fault(
        "padded keys not masked",
        ROWS,
        "if masked[sequence].any():",
        "if False:",
        "attention_steps attention_options",
    ),
    Fault(
        "mask by head",
        ROWS,
        "sequence, head = np.divmod(",
        "head, sequence = np.divmod(",
        "attention_steps",
    ),
    Fault(
        "scores not scaled",
        ROWS,
        "y *= np.float32(scale)\n        if position_bias",
        "if position_bias",
        "attention_steps",
    ),
    Fault(
        "additive mask left out",
        ROWS,
        "if additive[sequence].any():",
        "if False:",
        "attention_steps",
    ),
    Fault(
        "a row without keys divided by zero",
        ROWS,
        "total[total == 0] = 1",
        "total += 1e-6",
        "attention_steps",
    ),
    Fault("window of the softmax left out", ROWS, "if beyond is not None:", "if False:", "windows"),
    Fault(
        "bias of the first head for all",
        ROWS,
        "y += position_bias[head]",
        "y += position_bias[0]",
        "windows",
    ),
    Fault("left edge of the window lost", HEADS, "- left - 1, dtype", "- left, dtype", "windows"),
    Fault(
        "right edge of the window lost",
        HEADS,
        "ahead + right, dtype",
        "ahead + right - 1, dtype",
        "windows",
    ),
    Fault(
        "window rounded up",
        HEADS,
        "reach = (window // 2, window // 2)",
        "reach = ((window + 1) // 2, (window + 1) // 2)",
        "banded windows",
    ),
    Fault(
        "whole window on each side",
        HEADS,
        "reach = (window // 2, window // 2)",
        "reach = (window, window)",
        "windows",
    ),
    Fault(
        "window turned round",
        HEADS,
        "beyond=beyond(every, every, *window)",
        "beyond=beyond(every, every, *window[::-1])",
        "windows",
    ),
    Fault(
        "bias by the distance of the wrong sign",
        HEADS,
        "strides=(by_head, -step, step)",
        "strides=(by_head, step, -step)",
        "windows",
    ),
    Fault(
        "bias one distance off",
        HEADS,
        "middle = position_bias.shape[1] // 2",
        "middle = max(0, position_bias.shape[1] // 2 - 1)",
        "windows",
    ),
    Fault(
        "causal softmax sees the next key",
        ROWS,
        "np.bool_), k=1)",
        "np.bool_), k=2)",
        "causal_attention",
    ),
    Fault(
        "mask turned round",
        HEADS,
        "np.where(int_mask != 0,",
        "np.where(int_mask == 0,",
        "attention_steps",
    ),
)

LAYOUTS = (
    Fault(
        "padding not cleared",
        HEADS,
        "            out[row, length:] = 0\n",
        "",
        "memory_and_batching",
    ),
    Fault(
        "padding of heads not cleared",
        HEADS,
        "                by_head[row, :, length:] = 0\n",
        "",
        "heads",
    ),
    Fault(
        "tokens taken from the end",
        HEADS,
        "padded[row, : tokens.stop - tokens.start]",
        "padded[row, len(padded[row]) - tokens.stop + tokens.start :]",
        "memory_and_batching",
    ),
    Fault(
        "cu_seqlens one off",
        "drivers/batches.py",
        "np.concatenate([[0], np.cumsum(lengths)])",
        "np.concatenate([[0], np.cumsum(lengths) - 1])",
        "memory_and_batching",
    ),
    Fault(
        "sequences one token off",
        HEADS,
        "        start += length\n",
        "        start += max(1, length - 1)\n",
        "memory_and_batching heads",
    ),
    Fault(
        "one padded key too many",
        "drivers/batches.py",
        "position < np.asarray(lengths)[:, None]",
        "position <= np.asarray(lengths)[:, None]",
        "memory_and_batching",
    ),
    Fault(
        "k and v swapped",
        HEADS,
        "qkv.dtype)\n        first = 0\n        " + SPLIT_ORDER,
        "qkv.dtype)\n        first = 0\n        "
        + SPLIT_ORDER.replace("(k, kv_heads), (v, kv_heads)", "(v, kv_heads), (k, kv_heads)"),
        "heads",
    ),
    Fault(
        "k and v swapped in the fused split",
        HEADS,
        "flat.dtype)\n        first = 0\n        " + SPLIT_ORDER,
        "flat.dtype)\n        first = 0\n        "
        + SPLIT_ORDER.replace("(k, kv_heads), (v, kv_heads)", "(v, kv_heads), (k, kv_heads)"),
        "heads forward_ops",
    ),
    Fault(
        "heads not brought together",
        HEADS,
        "heads.reshape(batch, num_heads, seq, head_dim).transpose(0, 2, 1, 3)",
        "heads.reshape(batch, seq, num_heads, head_dim)",
        "attention_steps",
    ),
    Fault(
        "context of another sequence",
        HEADS,
        "by_head[row, :, :length].transpose(1, 0, 2)",
        "by_head[0, :, :length].transpose(1, 0, 2)",
        "heads",
    ),
    Fault(
        "rotation the other way",
        HEADS,
        "turned = first * c - second * s",
        "turned = first * c + second * s",
        "rope",
    ),
    Fault(
        "neighbours rotated as pairs",
        HEADS,
        "first = float32(heads[..., :pairs])\n"
        "        second = float32(heads[..., pairs : 2 * pairs])",
        "first = float32(heads[..., 0 : 2 * pairs : 2])\n"
        "        second = float32(heads[..., 1 : 2 * pairs : 2])",
        "rope",
    ),
    Fault("cos and sin swapped", HEADS, "for t in (cos, sin))", "for t in (sin, cos))", "rope"),
    Fault(
        "rotation one position late",
        HEADS,
        "pairs)[:, :, :seq]",
        "pairs)[:, :, np.maximum(np.arange(seq) - 1, 0)]",
        "rope",
    ),
    Fault(
        "what is not rotated lost",
        HEADS,
        "rotated[..., 2 * pairs :] = heads[..., 2 * pairs :]",
        "rotated[..., 2 * pairs :] = 0",
        "rope",
    ),
)
