"""Random calls of the forward operations, sound and damaged; how far two drivers may differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drivers import Encoding
from drivers.types import EmbeddingTable, NormWeights, QkNorm, Rope
from tests import oracle
from tests.ops import damage
from tests.ops.test_attention_options import Case
from tests.ops.test_forward_ops import STEEPEST

F32 = np.dtype(np.float32)
ACTS = [None, *sorted(oracle.ACTIVATIONS)]
POOLS = ["cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"]
ID_NAMES = ["input_ids", "token_type_ids", "position_ids"]


@dataclass
class Call:
    """run(driver, arrays) makes the call; budget: how far two float32 drivers may be apart.

    weights: the arrays that the driver packs. lengths: of the sequences, where there are any.
    blurred: whether a value that is not finite may reach its whole sequence.
    """

    op: str
    arrays: dict[str, Any]
    run: Callable[[Any, dict[str, Any]], Any]
    budget: float = 0.0
    weights: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    blurred: bool = False
    notes: list[Any] = field(default_factory=list)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def maybe(rng, array):
    return array if rng.random() < 0.5 else None


def size(rng, most):
    """From 1 to `most`, small ones often."""
    return int(rng.integers(1, rng.integers(2, most + 2)))


def pick(rng, *choices):
    """One of them as it is; NumPy would make a NumPy value of it."""
    return choices[rng.integers(len(choices))]


def random_lengths(rng, most):
    return tuple(size(rng, most) for _ in range(rng.integers(1, 5)))


def batch_of(driver, lengths, pool_skip=None):
    skips = pool_skip or [0] * len(lengths)
    return driver.prepare_batch_unpadded(
        [Encoding(np.ones(n, np.int32), pool_skip=s) for n, s in zip(lengths, skips)]
    )


def largest(*arrays):
    return max((float(np.abs(a).max(initial=0.0)) for a in arrays if a is not None), default=0.0)


def apart(terms, scale):
    """Twice what one driver may err by, summing `terms` of the size `scale` in float32."""
    return 2 * oracle.error_budget(np.zeros(0), F32, terms=terms, scale=scale)


# ---- linear layers


def pack_call(rng):
    role = pick(rng, "linear", "gated", "table", "vector")
    rows, cols = size(rng, 70), size(rng, 40)
    shape = (cols,) if role == "vector" else (2 * rows if role == "gated" else rows, cols)
    dtype = pick(rng, np.float32, np.float32, np.float16)

    def run(driver, arrays):
        return driver.to_host(driver.pack(arrays["weight"], role, dtype))

    return Call("pack", {"weight": floats(rng, *shape)}, run, weights=("weight",), notes=[role])


def packed(rng, role):
    """How a weight comes to the driver: nearly always as a model's does."""
    how = pick(rng, *[role] * 12, "linear", "gated", "table", "float16", "as it is")
    if how == "as it is":
        return how, lambda driver, weight: driver.from_host(weight)
    if how == "float16":
        return how, lambda driver, weight: driver.pack(weight, role, np.float16)
    return how, lambda driver, weight: driver.pack(weight, how, np.float32)


def product_budget(arrays):
    x, weight = arrays["x"], arrays["weight"]
    scale = oracle.gemm_scale(x, weight, transpose_b=True)
    sizes = largest(x @ weight.T, arrays["bias"])
    return apart(x.shape[1], scale) + apart(2, sizes), 2 * sizes


def linear_call(rng):
    rows, depth, cols = size(rng, 40), size(rng, pick(rng, 40, 600)), size(rng, 70)
    act = pick(rng, *ACTS, "swish") if rng.random() < 0.1 else pick(rng, *ACTS)
    how, pack = packed(rng, "linear")
    arrays = {
        "x": floats(rng, rows, depth),
        "weight": floats(rng, cols, depth),
        "bias": maybe(rng, floats(rng, cols)),
        "residual": maybe(rng, floats(rng, rows, cols)),
    }

    def run(driver, arrays):
        weight = pack(driver, arrays["weight"])
        residual = arrays["residual"]
        return driver.linear(arrays["x"], weight, arrays["bias"], act=act, residual=residual)

    error, sizes = product_budget(arrays)
    budget = STEEPEST * error + apart(16, sizes + largest(arrays["residual"]))
    return Call("linear", arrays, run, budget, ("weight",), notes=[act, how])


def gated_call(rng):
    rows, depth, cols = size(rng, 40), size(rng, 40), size(rng, 40)
    act = pick(rng, *ACTS[1:])
    how, pack = packed(rng, "gated")
    arrays = {
        "x": floats(rng, rows, depth),
        "weight": floats(rng, 2 * cols, depth),
        "bias": maybe(rng, floats(rng, 2 * cols)),
    }

    def run(driver, arrays):
        weight = pack(driver, arrays["weight"])
        return driver.gated_linear(arrays["x"], weight, arrays["bias"], act=act)

    error, sizes = product_budget(arrays)
    budget = (STEEPEST + 1) * error * max(1.0, sizes) + apart(17, max(1.0, sizes) ** 2)
    return Call("gated_linear", arrays, run, budget, ("weight",), notes=[act, how])


# ---- rows


def norm_budget(total, arrays, eps, kind):
    """The row's spread says by how much its rounding grows."""
    total = oracle.wide(total)
    centred = total - total.mean(axis=-1, keepdims=True) if kind == "layer" else total
    spread = np.sqrt((centred**2).mean(axis=-1) + eps)
    scale = float((np.abs(total).max(axis=-1) / spread).max()) * largest(arrays["norm"])
    return apart(total.shape[-1] + 6, 2 * scale + largest(arrays["bias"]))


def norm_options(rng, arrays):
    """Kind, and eps; sometimes a kind that is not, or an RMS norm with a bias."""
    kind = pick(rng, "layer", "rms")
    if kind == "rms" and rng.random() < 0.9:
        arrays["bias"] = None
    return kind if rng.random() < 0.97 else "batch", pick(rng, 1e-12, 1e-5, 0.1)


def add_norm_call(rng):
    rows, cols = size(rng, 40), size(rng, pick(rng, 40, 600))
    arrays = {
        "x": floats(rng, rows, cols) + pick(rng, 0, 100) * floats(rng, rows, 1),
        "residual": maybe(rng, floats(rng, rows, cols)),
        "norm": floats(rng, cols),
        "bias": maybe(rng, floats(rng, cols)),
    }
    kind, eps = norm_options(rng, arrays)
    order = pick(rng, "pre", "sandwich") if rng.random() < 0.97 else "post"

    def run(driver, arrays):
        norm = NormWeights(arrays["norm"], arrays["bias"], eps, kind)
        return driver.add_norm(arrays["x"], arrays["residual"], norm, order=order)

    other = arrays["residual"]
    total = arrays["x"] if other is None or order == "sandwich" else arrays["x"] + other
    budget = norm_budget(total, arrays, eps, kind) + apart(1, largest(other))
    return Call("add_norm", arrays, run, budget, notes=[kind, eps, order])


def embed_call(rng):
    lengths, cols = random_lengths(rng, 12), size(rng, 70)
    names = ID_NAMES[: rng.integers(1, 4)]
    rows = [size(rng, 20) for _ in names]
    arrays = {
        name: rng.integers(0, n, sum(lengths)).astype(np.int32) for name, n in zip(names, rows)
    }
    arrays |= {f"{name} table": floats(rng, n, cols) for name, n in zip(names, rows)}
    arrays |= {"norm": maybe(rng, floats(rng, cols)), "bias": maybe(rng, floats(rng, cols))}
    kind, eps = norm_options(rng, arrays)
    if rng.random() < 0.15:  # an id that is outside its table
        name = pick(rng, *names)
        ids, outside = arrays[name], rows[names.index(name)]
        ids[rng.integers(len(ids))] = pick(rng, outside, outside + 7, -1, -outside, 2**31 - 1)

    def run(driver, arrays):
        batch = replace(batch_of(driver, lengths), **{name: arrays[name] for name in names})
        tables = [EmbeddingTable(arrays[f"{name} table"], name) for name in names]
        norm = None
        if arrays["norm"] is not None:
            norm = NormWeights(arrays["norm"], arrays["bias"], eps, kind)
        return driver.embed(batch, tables, norm)

    tables = [arrays[f"{name} table"] for name in names]
    inside = [np.clip(arrays[name], 0, n - 1) for name, n in zip(names, rows)]
    total = sum(table[ids] for table, ids in zip(tables, inside))
    budget = apart(len(names), largest(*tables))
    if arrays["norm"] is not None:
        budget = 2 * norm_budget(total, arrays, eps, kind)
    return Call("embed", arrays, run, budget, notes=[kind, eps, lengths])


# ---- sequences


def wrong_options(rng):
    """Heads, widths and windows that cannot be, or that reach beyond everything."""
    return pick(
        rng,
        {"num_heads": pick(rng, 0, -1, 5, 1000)},
        {"kv_heads": pick(rng, 0, -2, 5, 1000)},
        {"head_dim": pick(rng, 0, -1, 3, 1000)},
        {"window_left": pick(rng, -1, 2**31, 2**62)},
        {"window_right": pick(rng, -1, 2**31, 2**62)},
    )


def attention_call(rng):
    lengths = random_lengths(rng, pick(rng, *[40] * 12, 300))
    kv, shared = size(rng, 3), size(rng, 3)
    dim = pick(rng, size(rng, 130), 32, 64, int(rng.integers(1, 131)))
    window = [pick(rng, None, None, 0, 1, 5, 16, 64, 400) for _ in range(2)]
    if rng.random() < 0.3:
        window[1] = window[0]
    scales = [None, None, 1.0, 0.01]
    if window == [None, None]:  # a band takes a score of -infinity for no key, whatever the scale
        scales += [0.0, -0.3]
    case = Case(
        rng,
        F32,
        lengths,
        dim,
        heads=kv * shared,
        kv=kv,
        rope=pick(rng, 0.0, 0.0, 0.5, 1.0) if dim > 1 else 0.0,
        by_sequence=bool(rng.integers(2)),
        qk_norm=rng.random() < 0.3,
        causal=rng.random() < 0.25,
        left=window[0],
        right=window[1],
        bias=pick(rng, None, None, 0, 3),
        scale=pick(rng, *scales),
    )
    if case.bias is not None and rng.random() < 0.2:  # some distances are masked, or all
        case.bias[:, rng.random(case.bias.shape[1]) < pick(rng, 0.3, 0.95, 1.0)] = -np.inf
    arrays = {"qkv": case.qkv, "bias": case.bias}
    arrays |= dict(zip(("cos", "sin"), case.rope or (None, None)))
    arrays |= dict(zip(("q_norm", "k_norm"), case.qk_norm or (None, None)))
    options = case.plain | {"head_dim": pick(rng, None, dim)}
    options |= wrong_options(rng) if rng.random() < 0.08 else {}

    def run(driver, arrays):
        cos, q_norm = arrays["cos"], arrays["q_norm"]
        return driver.attention(
            arrays["qkv"],
            batch_of(driver, lengths),
            rope=None if case.rope is None else Rope(cos, arrays["sin"]),
            qk_norm=None if case.qk_norm is None else QkNorm(q_norm, arrays["k_norm"], 1e-6),
            position_bias=arrays["bias"],
            **options,
        )

    budget = 2 * case.budget(np.zeros(0, np.float32))
    blurred = options["causal"] or window != [None, None]
    return Call("attention", arrays, run, budget, (), lengths, blurred, [options])


def pool_call(rng):
    lengths = random_lengths(rng, pick(rng, *[40] * 6, 300))
    cols = size(rng, 70)
    modes = [pick(rng, *POOLS) for _ in range(rng.integers(1, 3))]
    modes = modes if rng.random() < 0.97 else pick(rng, [], ["median"])
    dim = pick(rng, None, None, None, 1, len(modes) * cols, len(modes) * cols + 1, 0)
    skips = [int(rng.integers(0, n)) if rng.random() < 0.3 else 0 for n in lengths]
    normalize = rng.random() < 0.3

    def run(driver, arrays):
        batch = batch_of(driver, lengths, skips)
        return driver.pool(arrays["x"], batch, modes, dim=dim, normalize=normalize)

    x = floats(rng, sum(lengths), cols)
    budget = apart(max(lengths), largest(x) * math.sqrt(max(lengths))) * (20 if normalize else 1)
    return Call("pool", {"x": x}, run, budget, (), lengths, notes=[modes, dim, normalize])


def batch_call(rng):
    """Lengths of 0, above the limit, or unlike the tokens; padded batches; ids of other dtypes."""
    lengths = tuple(int(n) for n in rng.integers(1, 8, 3))
    wrong = pick(rng, "empty", "none", "limit", "padded", "own limit", "tokens", "nothing in it")
    pools = rng.random() < 0.5
    qkv = floats(rng, sum(lengths), 12)

    def run(driver, arrays):
        rows = [Encoding(np.ones(n, np.int32)) for n in lengths]
        if wrong == "empty":
            batch = driver.prepare_batch_unpadded([*rows, Encoding(np.ones(0, np.int32))])
        elif wrong == "none":
            batch = driver.prepare_batch_unpadded([])
        elif wrong in ("limit", "padded"):
            batch = driver.prepare_batch(rows, max(lengths) - (wrong == "limit"))
        else:
            batch = driver.prepare_batch_unpadded(rows)
        if wrong == "own limit":
            batch = replace(batch, max_seq=max(lengths) - 1)
        if wrong == "tokens":
            batch = replace(batch, seq_lengths=(*lengths, 100), max_seq=100)
        if wrong == "nothing in it":
            bounds = np.concatenate([batch.cu_seqlens, batch.cu_seqlens[-1:]])
            batch = replace(batch, seq_lengths=(*lengths, 0), cu_seqlens=bounds, pool_skip=(0,) * 4)
            mask = np.concatenate([batch.attn_mask, batch.attn_mask[:1] * 0 - 10000])
            batch = replace(batch, attn_mask=mask)
        if pools:
            return driver.pool(arrays["qkv"], batch, ["mean", "max", "weighted_mean"])
        return driver.attention(arrays["qkv"], batch, num_heads=2)

    return Call("pool" if pools else "attention", {"qkv": qkv}, run, 1e-5, notes=[wrong])


KINDS = [
    *(pack_call, linear_call, linear_call, gated_call, add_norm_call, embed_call),
    *(attention_call, attention_call, attention_call, pool_call, batch_call),
]


def random_call(seed) -> tuple[Call, str | None, str]:
    """A call, the array that is damaged in it, if any, and how."""
    rng = np.random.default_rng(seed)
    call = pick(rng, *KINDS)(rng)
    there = [name for name, array in call.arrays.items() if array is not None]
    if rng.random() < 0.4:
        return call, None, "sound"
    name = pick(rng, *there)
    kinds = {
        "not_finite": {"not_finite": damage.not_finite},
        "stored": damage.STORED_OTHERWISE,
        "shape": damage.OTHER_SHAPES,
        "dtype": damage.OTHER_DTYPES,
    }
    damages = kinds[pick(rng, "not_finite", "stored", "stored", "shape", "dtype")]
    how = pick(rng, *damages)
    changed = damages[how](rng, call.arrays[name])
    if how == "one_row_more":
        changed = changed.astype(call.arrays[name].dtype)
    call.arrays = call.arrays | {name: changed}
    return call, name, how
