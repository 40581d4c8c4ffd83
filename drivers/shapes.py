"""Shape rules as pure functions. Every driver calls the same ones, so all refuse alike."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from drivers.errors import ShapeError
from drivers.types import BatchInputs, Encoding, T, Tensor

Shape = tuple[int, ...]


def require(op: str, name: str, got: Shape, want: Sequence[int | None]) -> None:
    """Refuse a shape that is not `want`; None in `want` stands for any size.

    Raises ShapeError naming the operation, the argument, what was got and what was wanted.
    """
    if len(got) == len(want) and all(w is None or g == w for g, w in zip(got, want)):
        return
    wanted = ", ".join("*" if w is None else str(w) for w in want)
    raise ShapeError(f"{op}: {name} has shape {got}, wanted ({wanted})")


def rows_cols(op: str, x: Tensor) -> tuple[int, int]:
    """(rows, cols) of a matrix; a tensor of more dimensions counts all but the last as rows."""
    if len(x.shape) < 2:
        raise ShapeError(f"{op}: wanted at least 2 dimensions, got shape {x.shape}")
    return prod(x.shape[:-1]), x.shape[-1]


def gemm(op: str, a: Shape, b: Shape, transpose_b: bool) -> Shape:
    """Shape of `a @ b` (or `a @ b.T`): (m, k) and (k, n) or (n, k) give (m, n)."""
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(f"{op}: wanted two matrices, got shapes {a} and {b}")
    k, n = (b[1], b[0]) if transpose_b else (b[0], b[1])
    if a[1] != k:
        raise ShapeError(f"{op}: inner sizes differ: a is {a}, b is {b}, transpose_b={transpose_b}")
    return (a[0], n)


def gemm_batched(op: str, a: Shape, b: Shape, transpose_b: bool) -> Shape:
    """Shape of a batched product: (G, m, k) and (G / r, k, n) or (G / r, n, k) give (G, m, n)."""
    if len(a) != 3 or len(b) != 3 or not _serves(a[0], b[0]):
        raise ShapeError(f"{op}: wanted (G, m, k) and (G, ., .) of one G, got {a} and {b}")
    return (a[0], *gemm(op, a[1:], b[1:], transpose_b))


def _serves(groups: int, shared: int) -> bool:
    """Whether each of `shared` groups can serve as many consecutive ones of `groups`."""
    return groups == shared or (shared > 0 and groups % shared == 0)


def heads(op: str, hidden: int, num_heads: int) -> int:
    """head_dim, refusing a hidden size that the heads do not divide."""
    if num_heads < 1 or hidden % num_heads:
        raise ShapeError(f"{op}: {num_heads} heads do not divide the hidden size {hidden}")
    return hidden // num_heads


def matrix_at(op: str, x: Shape, index: int) -> Shape:
    """Shape (m, n) of matrix `index` of (G, m, n), refusing an index that is not one of G."""
    require(op, "x", x, (None, None, None))
    if not 0 <= index < x[0]:
        raise ShapeError(f"{op}: no matrix {index} among the {x[0]} of {x}")
    return x[1:]


def squares(op: str, name: str, got: Shape) -> None:
    """Refuse what is neither a square matrix (S, S) nor a group of them (G, S, S)."""
    groups = (None,) if len(got) == 3 else ()
    side = got[-1] if got else None
    require(op, name, got, (*groups, side, side))


def qkv(
    op: str,
    qkv_shape: Shape,
    num_heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> tuple[int, int]:
    """(KV, D) of a fused projection whose last dimension is (N + 2 KV) D."""
    width = qkv_shape[-1]
    if kv_heads is None and head_dim is None:
        if not width or width % 3:
            raise ShapeError(f"{op}: qkv has shape {qkv_shape}, wanted a last dimension of 3E")
        return num_heads, heads(op, width // 3, num_heads)
    kv_heads = num_heads if kv_heads is None else kv_heads
    if num_heads < 1 or kv_heads < 1 or num_heads % kv_heads:
        raise ShapeError(f"{op}: {kv_heads} key heads do not divide {num_heads} heads")
    parts = num_heads + 2 * kv_heads
    if not width or width % parts or head_dim not in (None, width // parts):
        raise ShapeError(
            f"{op}: qkv has shape {qkv_shape}, wanted a last dimension of {parts} heads"
            + ("" if head_dim is None else f" of {head_dim}")
        )
    return kv_heads, width // parts


def softmax(
    op: str,
    scores: Shape,
    mask: Shape,
    num_heads: int,
    window: tuple[int | None, int | None] = (None, None),
    position_bias: Shape | None = None,
) -> None:
    """Refuse scores that are not (B * N, S, S), negative windows, and a short position bias."""
    require(op, "mask", mask, (None, None))
    batch, seq = mask
    require(op, "scores", scores, (batch * num_heads, seq, seq))
    reach(op, *window)
    if position_bias is None:
        return
    require(op, "position_bias", position_bias, (num_heads, None))
    if position_bias[1] % 2 == 0 or position_bias[1] < 2 * seq - 1:
        raise ShapeError(
            f"{op}: position_bias has shape {position_bias}, wanted an odd width of at least "
            f"{2 * seq - 1}"
        )


def reach(op: str, left: int | None, right: int | None) -> None:
    """Refuse a window that reaches a negative number of keys to either side."""
    if min(left or 0, right or 0) < 0:
        raise ShapeError(f"{op}: the window reaches ({left}, {right}), wanted nothing negative")


def banded_qk(op: str, q: Shape, k: Shape, window: int) -> Shape:
    """Shape (G, S, W) of banded scores: q (G, S, D), k (G / r, S, D)."""
    require(op, "q", q, (None, None, None))
    require(op, "k", k, (None, *q[1:]))
    if not _serves(q[0], k[0]):
        raise ShapeError(f"{op}: {k[0]} key heads do not divide {q[0]} heads")
    if window < 1:
        raise ShapeError(f"{op}: window is {window}, wanted at least 1")
    return (*q[:2], window)


def banded_softmax(op: str, scores: Shape, seq_lengths: Sequence[int] | None) -> None:
    """Refuse what is not (rows, W) or, with lengths of the B sequences, (B * N, S, W)."""
    if seq_lengths is None:
        if len(scores) < 2:
            raise ShapeError(f"{op}: wanted at least 2 dimensions, got shape {scores}")
        return
    require(op, "scores", scores, (None, None, None))
    if not _serves(scores[0], len(seq_lengths)):
        raise ShapeError(f"{op}: {len(seq_lengths)} lengths do not divide {scores[0]} heads")
    lengths_within(op, seq_lengths, scores[1])


def banded_sv(op: str, weights: Shape, v: Shape) -> Shape:
    """Shape (G, S, D) of a banded product: weights (G, S, W), v (G / r, S, D)."""
    require(op, "weights", weights, (None, None, None))
    require(op, "v", v, (None, weights[1], None))
    if not _serves(weights[0], v[0]):
        raise ShapeError(f"{op}: {v[0]} value heads do not divide {weights[0]} heads")
    return (*weights[:2], v[2])


def rope(op: str, x: Shape, cos: Shape, sin: Shape) -> None:
    """Refuse tables that are not (P, R / 2) or (B, P, R / 2) with P >= S and R <= D."""
    require(op, "x", x, (None, None, None))
    require(op, "sin", sin, cos)
    groups, seq, head_dim = x
    if len(cos) not in (2, 3) or cos[-2] < seq or 2 * cos[-1] > head_dim:
        raise ShapeError(
            f"{op}: cos has shape {cos}, wanted at least {seq} positions and at most "
            f"{head_dim // 2} pairs"
        )
    if len(cos) == 3 and not _serves(groups, cos[0]):
        raise ShapeError(f"{op}: {cos[0]} tables do not divide {groups} heads")


def halves(op: str, x: Shape) -> Shape:
    """(rows, F) of gated rows (rows, 2 F), refusing an odd width."""
    if len(x) < 2 or x[-1] % 2:
        raise ShapeError(f"{op}: x has shape {x}, wanted rows of an even width")
    return (*x[:-1], x[-1] // 2)


def tokens(op: str, flat: Shape, seq_lengths: Sequence[int], max_seq: int) -> None:
    """Refuse flat rows that are not the sum of the lengths, or a length above `max_seq`."""
    total = sum(seq_lengths)
    require(op, "flat", flat, (None, None))
    if flat[0] != total:
        raise ShapeError(f"{op}: {flat[0]} rows, but the lengths sum to {total}")
    lengths_within(op, seq_lengths, max_seq)


def lengths_within(op: str, seq_lengths: Sequence[int], max_seq: int) -> None:
    """Refuse a length that is negative or above `max_seq`."""
    if seq_lengths and not 0 <= min(seq_lengths) <= max(seq_lengths) <= max_seq:
        raise ShapeError(
            f"{op}: lengths from {min(seq_lengths)} to {max(seq_lengths)}, max_seq is {max_seq}"
        )


def encodings(op: str, batch: Sequence[Encoding], max_seq: int) -> None:
    """Refuse an empty batch, an empty or over-long sequence, and other ids of another length."""
    if not batch:
        raise ShapeError(f"{op}: no encodings")
    for row, encoding in enumerate(batch):
        length = len(encoding)
        if not 1 <= length <= max_seq:
            raise ShapeError(f"{op}: row {row} has {length} tokens, wanted 1 to {max_seq}")
        for name, ids in (("type", encoding.type_ids), ("position", encoding.position_ids)):
            if ids is not None and len(ids) != length:
                raise ShapeError(
                    f"{op}: row {row} has {length} input ids but {len(ids)} {name} ids"
                )
        if not 0 <= encoding.pool_skip < length:
            raise ShapeError(
                f"{op}: row {row} leaves {encoding.pool_skip} of {length} tokens out of the pool"
            )


def flat_batch(op: str, x: Shape, batch: BatchInputs[T]) -> None:
    """Refuse token rows that are not the batch's real tokens, or a batch that is padded, and
    lengths above the batch's own limit."""
    if batch.padded:
        raise ShapeError(f"{op}: wanted an unpadded batch")
    lengths_within(op, batch.seq_lengths, batch.max_seq)
    if len(x) != 2 or x[0] != batch.total_tokens:
        raise ShapeError(f"{op}: tokens have shape {x}, wanted ({batch.total_tokens}, *)")


def reshape_unpad(op: str, heads_shape: Shape, seq_lengths: Sequence[int], num_heads: int) -> Shape:
    """Shape (T, N D) of unpadded tokens: heads (B * N, S, D), one length for each of B."""
    require(op, "heads", heads_shape, (len(seq_lengths) * num_heads, None, None))
    lengths_within(op, seq_lengths, heads_shape[1])
    return (sum(seq_lengths), num_heads * heads_shape[2])


def pooled(op: str, hidden: Shape, mask: Shape) -> Shape:
    """Shape (B, E) of pooled sequences: hidden (B, S, E), mask (B, S)."""
    require(op, "hidden", hidden, (None, None, None))
    require(op, "mask", mask, hidden[:2])
    return (hidden[0], hidden[2])


def cls_pool(op: str, hidden: Shape) -> Shape:
    """Shape (B, E) of first tokens, refusing sequences without one."""
    require(op, "hidden", hidden, (None, None, None))
    if hidden[1] == 0:
        raise ShapeError(f"{op}: hidden has shape {hidden}, wanted at least one token")
    return (hidden[0], hidden[2])


def outs(op: str, out: tuple[T, ...] | None, count: int) -> tuple[T | None, ...]:
    """The tensors to write several results to, None for each that is to be new."""
    if out is None:
        return (None,) * count
    if len(out) != count:
        raise ShapeError(f"{op}: out has {len(out)} tensors, wanted {count}")
    return out


def qkv_heads(
    batch: int, seq: int, num_heads: int, kv_heads: int, head_dim: int
) -> tuple[Shape, Shape, Shape]:
    """Shapes of q (B * N, S, D), and of k and v (B * KV, S, D)."""
    kv = (batch * kv_heads, seq, head_dim)
    return (batch * num_heads, seq, head_dim), kv, kv
