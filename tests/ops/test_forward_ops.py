"""The forward operations against float64 oracles and against their composition from primitives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import DriverError, Encoding, ShapeError
from drivers.forward_ops import ForwardOps
from drivers.types import EmbeddingTable, NormWeights
from tests import oracle

ACTS = [None, *sorted(oracle.ACTIVATIONS)]
STEEPEST = 1.13  # no activation stretches an error of its input by more (gelu at sqrt 2)
RAGGED = [(1,), (7, 1, 33), (31, 32, 33, 1, 2), (65, 5)]


def batch_of(driver, lengths):
    return driver.prepare_batch_unpadded([Encoding(np.ones(n, np.int32)) for n in lengths])


def up(driver, *arrays):
    return [driver.from_host(array.copy()) for array in arrays]


def random(rng, dtype, *shapes):
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


# ---- linear


def linear_oracle(x, weight, bias, act, residual):
    """act(x @ weight.T + bias) + residual, and what each stored step may cost on the way."""
    y = oracle.gemm(x, weight, transpose_b=True)
    dtype = x.dtype
    scale = oracle.gemm_scale(x, weight, transpose_b=True)
    budget = oracle.error_budget(y, dtype, terms=x.shape[-1], scale=scale)
    if bias is not None:
        y = y + oracle.wide(bias)
        budget += oracle.error_budget(y, dtype)
    if act is not None:
        y = oracle.ACTIVATIONS[act](y)
        budget = STEEPEST * budget + oracle.error_budget(y, dtype, terms=16)
    if residual is not None:
        y = y + oracle.wide(residual)
        budget += oracle.error_budget(y, dtype)
    return y, budget


def linear_steps(driver, x, weight, bias, act, residual):
    y = driver.gemm(x, weight, transpose_b=True)
    y = y if bias is None else driver.add_bias(y, bias)
    y = y if act is None else driver.activate(y, act)
    return y if residual is None else driver.residual_add(y, residual)


@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("rows", "width", "out"), [(1, 31, 33), (7, 1023, 31), (33, 7, 1025)])
def test_linear_matches_oracle_and_composition(
    driver, rng, dtype, rows, width, out, act, with_bias, with_residual
):
    x, weight, bias, residual = random(rng, dtype, (rows, width), (out, width), out, (rows, out))
    weight = (weight * width**-0.5).astype(dtype)
    bias = bias if with_bias else None
    residual = residual if with_residual else None
    want, budget = linear_oracle(x, weight, bias, act, residual)
    tensors = [None if v is None else driver.from_host(v.copy()) for v in (x, bias, residual)]
    packed = driver.pack(weight.astype(np.float32), "linear", dtype)
    got = driver.linear(tensors[0], packed, tensors[1], act=act, residual=tensors[2])
    assert got.dtype == dtype
    assert oracle.max_error(driver, got, want) <= budget
    steps = linear_steps(driver, tensors[0], driver.from_host(weight), tensors[1], act, tensors[2])
    assert oracle.max_error(driver, got, driver.to_host(steps)) <= budget
    for tensor, before in zip(tensors, (x, bias, residual)):
        if tensor is not None:
            assert np.array_equal(driver.to_host(tensor), before)


def test_linear_adds_the_residual_after_the_activation(driver):
    x, eye = up(driver, np.array([[-3.0]], np.float32), np.array([[1.0]], np.float32))
    residual = driver.from_host(np.array([[10.0]], np.float32))
    assert driver.to_host(driver.linear(x, eye, act="relu", residual=residual)).item() == 10


def test_linear_names_an_unknown_activation(driver):
    x, weight = up(driver, np.ones((2, 3), np.float32), np.ones((5, 3), np.float32))
    with pytest.raises(DriverError, match="unknown activation 'swish'"):
        driver.linear(x, weight, act="swish")


def test_linear_refuses_what_does_not_fit(any_driver):
    x, weight = any_driver.alloc_zeros((2, 3)), any_driver.alloc_zeros((5, 3))
    with pytest.raises(ShapeError, match=r"inner sizes differ: a is \(2, 3\), b is \(5, 4\)"):
        any_driver.linear(x, any_driver.alloc_zeros((5, 4)))
    with pytest.raises(ShapeError, match=r"bias has shape \(4,\), wanted \(5\)"):
        any_driver.linear(x, weight, any_driver.alloc_zeros((4,)))
    with pytest.raises(ShapeError, match=r"bias has shape \(4,\), wanted \(5\)"):
        any_driver.linear(x, weight, any_driver.alloc_zeros((4,)), act="gelu")
    with pytest.raises(ShapeError, match=r"residual has shape \(2, 4\), wanted \(2, 5\)"):
        any_driver.linear(x, weight, residual=any_driver.alloc_zeros((2, 4)))


# ---- gated_linear


@pytest.mark.parametrize("with_bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("act", ACTS[1:])
@pytest.mark.parametrize(("rows", "width", "inner"), [(1, 31, 33), (7, 1023, 31), (33, 7, 515)])
def test_gated_linear_matches_oracle_and_composition(
    driver, rng, dtype, rows, width, inner, act, with_bias
):
    x, weight, bias = random(rng, dtype, (rows, width), (2 * inner, width), 2 * inner)
    weight = (weight * width**-0.5).astype(dtype)
    bias = bias if with_bias else None
    product, budget = linear_oracle(x, weight, bias, None, None)
    first, second = np.split(product, 2, axis=-1)
    want = oracle.gated(first, second, act)
    # each half errs by the budget, and is multiplied by the other
    largest = max(1.0, *(float(np.abs(half).max()) for half in (first, second)))
    budget = (STEEPEST + 1) * budget * largest
    budget += oracle.error_budget(want, dtype, terms=17, scale=largest**2)
    packed = driver.pack(weight.astype(np.float32), "gated", dtype)
    tensors = [None if v is None else driver.from_host(v.copy()) for v in (x, bias)]
    got = driver.gated_linear(tensors[0], packed, tensors[1], act=act)
    assert got.dtype == dtype
    assert oracle.max_error(driver, got, want) <= budget
    assert np.array_equal(driver.to_host(tensors[0]), x)
    y = linear_steps(driver, tensors[0], driver.from_host(weight), tensors[1], None, None)
    value, gate = driver.split_gate_value(y)
    if act == "gelu":
        assert oracle.max_error(driver, got, driver.to_host(driver.geglu(value, gate))) <= budget
    if act == "silu":
        assert oracle.max_error(driver, got, driver.to_host(driver.swiglu(gate, value))) <= budget


def test_gated_linear_refuses_an_odd_width_and_an_unknown_activation(any_driver):
    x = any_driver.alloc_zeros((2, 3))
    with pytest.raises(ShapeError, match=r"fused_split_gate: x has shape \(2, 5\), .* even"):
        any_driver.gated_linear(x, any_driver.alloc_zeros((5, 3)), act="gelu")
    with pytest.raises(DriverError, match="unknown activation 'swish'"):
        any_driver.gated_linear(x, any_driver.alloc_zeros((4, 3)), act="swish")


# ---- embed and add_norm


def embed_case(rng, dtype, width=31):
    lengths = (7, 1, 33)
    rows = [
        Encoding(
            rng.integers(0, 101, n).astype(np.int32),
            rng.integers(0, 2, n).astype(np.int32),
        )
        for n in lengths
    ]
    tables = dict(
        zip(
            ("input_ids", "token_type_ids", "position_ids"),
            random(rng, dtype, (101, width), (2, width), (33, width)),
        )
    )
    ids = {
        "input_ids": np.concatenate([row.input_ids for row in rows]),
        "token_type_ids": np.concatenate([row.type_ids for row in rows]),
        "position_ids": np.concatenate([np.arange(n) for n in lengths]),
    }
    return rows, tables, ids


@pytest.mark.parametrize("with_norm", [False, True], ids=["sum", "norm"])
@pytest.mark.parametrize(
    "names",
    [
        ("input_ids",),
        ("input_ids", "position_ids"),
        ("input_ids", "token_type_ids", "position_ids"),
    ],
    ids=len,
)
def test_embed_matches_oracle_and_composition(driver, rng, dtype, names, with_norm):
    rows, tables, ids = embed_case(rng, dtype)
    weight, bias = random(rng, dtype, 31, 31)
    batch = driver.prepare_batch_unpadded(rows)
    entries = [EmbeddingTable(driver.from_host(tables[n].copy()), n) for n in names]
    norm = NormWeights(*up(driver, weight, bias), eps=1e-12)
    got = driver.embed(batch, entries, norm if with_norm else None)

    want, budget = 0.0, 0.0  # each stored partial sum is rounded
    for name in names:
        want = want + oracle.wide(tables[name])[ids[name]]
        budget += oracle.error_budget(want, dtype)
    if with_norm:
        spread = float((1 / want.std(axis=-1)).max() * np.abs(oracle.wide(weight)).max())
        scale = spread * float(np.abs(want).max())
        want = oracle.layer_norm(want, weight, bias, eps=1e-12)
        budget = 2 * spread * budget  # its own, and its row's statistics
        budget += oracle.error_budget(want, dtype, terms=31, scale=scale)
    assert got.dtype == dtype
    assert oracle.max_error(driver, got, want) <= budget

    steps = driver.embedding_lookup(getattr(batch, names[0]), entries[0].table)
    for entry in entries[1:]:
        steps = driver.add_embeddings(steps, entry.table, getattr(batch, entry.ids))
    if with_norm:
        steps = driver.layer_norm(steps, norm.weight, norm.bias, eps=norm.eps)
    assert oracle.max_error(driver, got, driver.to_host(steps)) <= budget
    for entry in entries:
        assert np.array_equal(driver.to_host(entry.table), tables[entry.ids])


def test_embed_refuses_no_tables_and_tables_of_two_widths(any_driver):
    batch = batch_of(any_driver, [2, 3])
    with pytest.raises(ShapeError, match="embed: no tables"):
        any_driver.embed(batch, [])
    entries = [
        EmbeddingTable(any_driver.alloc_zeros((9, 7)), "input_ids"),
        EmbeddingTable(any_driver.alloc_zeros((9, 8)), "position_ids"),
    ]
    with pytest.raises(ShapeError, match=r"hidden has shape \(5, 7\), wanted \(5, 8\)"):
        any_driver.embed(batch, entries)


@pytest.mark.parametrize("with_residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("shape", [(1, 1025), (7, 31), (33, 1023)])
def test_add_norm_matches_oracle_and_composition(driver, rng, dtype, shape, with_residual):
    x, residual, weight, bias = random(rng, dtype, shape, shape, shape[1], shape[1])
    tensors = up(driver, x, residual, weight, bias)
    norm = NormWeights(tensors[2], tensors[3], eps=1e-5)
    got = driver.add_norm(tensors[0], tensors[1] if with_residual else None, norm)
    total = oracle.wide(x) + (oracle.wide(residual) if with_residual else 0)
    want = oracle.layer_norm(total, weight, bias, eps=1e-5)
    reach = np.abs(total).max(axis=-1) / total.std(axis=-1)
    scale = float(reach.max() * np.abs(oracle.wide(weight)).max() + np.abs(bias).max())
    budget = oracle.error_budget(want, dtype, terms=shape[1] + 5, scale=scale)
    assert got.dtype == dtype
    assert oracle.max_error(driver, got, want) <= budget
    if with_residual:
        steps = driver.fused_residual_layernorm(*tensors, eps=1e-5)
    else:
        steps = driver.layer_norm(tensors[0], tensors[2], tensors[3], eps=1e-5)
    assert oracle.max_error(driver, got, driver.to_host(steps)) <= budget
    assert np.array_equal(driver.to_host(tensors[0]), x)
    assert np.array_equal(driver.to_host(tensors[1]), residual)


@pytest.mark.parametrize("order", ["pre", "sandwich"])
@pytest.mark.parametrize("kind", ["layer", "layer without bias", "rms"])
@pytest.mark.parametrize("shape", [(1, 1025), (7, 31), (33, 1023)])
def test_add_norm_of_each_kind_in_each_order_matches_oracle(driver, rng, dtype, shape, kind, order):
    x, residual, weight, bias = random(rng, dtype, shape, shape, shape[1], shape[1])
    bias = bias if kind == "layer" else None
    tensors = up(driver, x, residual, weight)
    up_bias = None if bias is None else driver.from_host(bias.copy())
    norm = NormWeights(tensors[2], up_bias, 1e-5, kind="rms" if kind == "rms" else "layer")
    got = driver.add_norm(tensors[0], tensors[1], norm, order=order)
    total = oracle.wide(x) + (oracle.wide(residual) if order == "pre" else 0)
    if kind == "rms":
        want = oracle.rms_norm(total, weight, eps=1e-5)
    else:
        want = oracle.layer_norm(total, weight, 0 if bias is None else bias, eps=1e-5)
    reach = float((np.abs(total).max(axis=-1) / total.std(axis=-1)).max())
    scale = reach * float(np.abs(oracle.wide(weight)).max()) + 4
    want = want + (oracle.wide(residual) if order == "sandwich" else 0)
    budget = oracle.error_budget(want, dtype, terms=shape[1] + 6, scale=scale)
    assert got.dtype == dtype
    assert oracle.max_error(driver, got, want) <= budget
    assert np.array_equal(driver.to_host(tensors[0]), x)
    assert np.array_equal(driver.to_host(tensors[1]), residual)
    alone = driver.add_norm(tensors[0], None, norm, order=order)
    steps = (
        driver.rms_norm(tensors[0], tensors[2], eps=1e-5)
        if kind == "rms"
        else driver.layer_norm(tensors[0], tensors[2], up_bias, eps=1e-5)
    )
    if type(driver).add_norm is ForwardOps.add_norm:
        assert np.array_equal(driver.to_host(alone), driver.to_host(steps))
    assert oracle.max_error(driver, alone, driver.to_host(steps)) <= budget


def test_the_sandwich_is_rounded_once(driver):
    """norm(x) = 0.99995 would be 1 in float16, and 1 - 1 is not -0.00005."""
    x = driver.from_host(np.array([[1, -1]], np.float16))
    weight = driver.from_host(np.array([0.99995, 0.99995], np.float32))
    norm = NormWeights(weight, None, 1e-12)
    residual = driver.from_host(np.array([[-1, 1]], np.float16))
    got = driver.to_host(driver.add_norm(x, residual, norm, order="sandwich"))
    assert got.tolist() == [[pytest.approx(-5e-5, rel=1e-2), pytest.approx(5e-5, rel=1e-2)]]


def test_embed_takes_an_rms_norm(driver, rng, dtype):
    rows, tables, ids = embed_case(rng, dtype)
    (weight,) = random(rng, dtype, 31)
    batch = driver.prepare_batch_unpadded(rows)
    entry = EmbeddingTable(driver.from_host(tables["input_ids"].copy()), "input_ids")
    norm = NormWeights(driver.from_host(weight), None, 1e-6, kind="rms")
    want = oracle.rms_norm(tables["input_ids"][ids["input_ids"]], weight, eps=1e-6)
    budget = oracle.error_budget(want, dtype, terms=35)
    assert oracle.max_error(driver, driver.embed(batch, [entry], norm), want) <= budget


def test_an_unknown_norm_an_unknown_order_and_an_rms_bias_are_refused(any_driver):
    x, row = any_driver.alloc_zeros((2, 3)), any_driver.alloc_zeros((3,))
    for residual in (None, x):
        with pytest.raises(DriverError, match="add_norm: unknown norm 'batch', have layer, rms"):
            any_driver.add_norm(x, residual, NormWeights(row, None, 1e-5, kind="batch"))
        with pytest.raises(DriverError, match="add_norm: an RMS norm has no bias"):
            any_driver.add_norm(x, residual, NormWeights(row, row, 1e-5, kind="rms"))
    with pytest.raises(DriverError, match="add_norm: unknown order 'post', have pre, sandwich"):
        any_driver.add_norm(x, x, NormWeights(row, None, 1e-5), order="post")


# ---- attention


def attention_oracle(qkv, lengths, heads, scale=None):
    """The answer, and a budget that follows each rounded step to the end.

    A stored logit errs by e, so a weight by its own share times exp(2 e) - 1, and a weight is
    stored once more; a row's weights sum to 1, so both reach the answer times the largest |v|.
    """
    q, k, v = np.split(oracle.wide(qkv), 3, axis=-1)
    head_dim = q.shape[-1] // heads
    scale = head_dim**-0.5 if scale is None else scale
    want = oracle.attention(qkv, lengths, num_heads=heads, scale=scale)
    split = [m.reshape(len(m), heads, head_dim).transpose(1, 0, 2) for m in (q, k)]
    scores = split[0] @ split[1].swapaxes(-1, -2)
    terms = oracle.gemm_scale(*split, transpose_b=True)
    logit = abs(scale) * oracle.error_budget(scores, qkv.dtype, terms=head_dim, scale=terms)
    logit += oracle.FLOAT32_ROUNDING * abs(scale) * float(np.abs(scores).max())
    largest = float(np.abs(v).max())
    weights = np.expm1(2 * logit) + np.finfo(qkv.dtype).eps / 2
    budget = largest * float(weights)
    budget += oracle.error_budget(want, qkv.dtype, terms=max(lengths) + 8, scale=largest)
    return want, budget


def attention_steps(driver, qkv, batch, heads, scale):
    lengths = batch.seq_lengths
    padded = driver.pad_to_batch(qkv, seq_lengths=lengths, max_seq=batch.max_seq)
    q, k, v = driver.qkv_split(padded, num_heads=heads)
    scores = driver.gemm_batched(q, k, transpose_b=True)
    weights = driver.fused_scale_mask_softmax(scores, batch.attn_mask, num_heads=heads, scale=scale)
    context = driver.attn_reshape(driver.gemm_batched(weights, v), num_heads=heads)
    return driver.unpad_from_batch(context, seq_lengths=lengths)


@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 7), (12, 32), (2, 65)])
@pytest.mark.parametrize("lengths", RAGGED)
def test_attention_matches_oracle_and_composition(driver, rng, dtype, lengths, heads, dim):
    (qkv,) = random(rng, dtype, (sum(lengths), 3 * heads * dim))
    batch, tensor = batch_of(driver, lengths), driver.from_host(qkv.copy())
    got = driver.attention(tensor, batch, num_heads=heads)
    want, budget = attention_oracle(qkv, lengths, heads)
    assert got.dtype == dtype
    assert oracle.max_error(driver, got, want) <= budget
    steps = attention_steps(driver, tensor, batch, heads, dim**-0.5)
    assert oracle.max_error(driver, got, driver.to_host(steps)) <= budget
    assert np.array_equal(driver.to_host(tensor), qkv)


@pytest.mark.parametrize("scale", [1.0, 0.01, 0.0])
def test_attention_takes_the_scale_it_is_given(driver, rng, dtype, scale):
    lengths = (7, 1, 33)
    (qkv,) = random(rng, dtype, (41, 3 * 2 * 7))
    got = driver.attention(
        driver.from_host(qkv.copy()), batch_of(driver, lengths), num_heads=2, scale=scale
    )
    want, budget = attention_oracle(qkv, lengths, 2, scale)
    assert oracle.max_error(driver, got, want) <= budget


@pytest.mark.parametrize("lengths", RAGGED)
def test_a_row_attends_as_it_does_alone(driver, rng, dtype, lengths):
    """Within what BLAS may differ by shape: the row's own rounding budget."""
    heads, dim = 3, 31
    (qkv,) = random(rng, dtype, (sum(lengths), 3 * heads * dim))
    together = driver.to_host(
        driver.attention(driver.from_host(qkv.copy()), batch_of(driver, lengths), num_heads=heads)
    )
    start = 0
    for length in lengths:
        row = qkv[start : start + length]
        alone = driver.attention(
            driver.from_host(row.copy()), batch_of(driver, [length]), num_heads=heads
        )
        _, budget = attention_oracle(row, [length], heads)
        error = oracle.max_error(driver, alone, together[start : start + length])
        assert error <= (min(budget, 1e-5) if dtype == np.float32 else budget)
        start += length


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(st.integers(1, 33), min_size=1, max_size=6),
    heads=st.sampled_from([1, 2, 3, 5]),
    dim=st.sampled_from([1, 7, 32, 33]),
    seed=st.integers(0, 2**16),
)
def test_attention_of_any_ragged_batch_matches_oracle(driver, lengths, heads, dim, seed):
    rng = np.random.default_rng(seed)
    for dtype in (np.float32, np.float16):
        (qkv,) = random(rng, dtype, (sum(lengths), 3 * heads * dim))
        got = driver.attention(
            driver.from_host(qkv.copy()), batch_of(driver, lengths), num_heads=heads
        )
        want, budget = attention_oracle(qkv, lengths, heads)
        assert oracle.max_error(driver, got, want) <= budget


def test_a_poisoned_sequence_does_not_reach_its_batch_mates(driver, rng, dtype):
    lengths = (7, 33, 5)
    (qkv,) = random(rng, dtype, (45, 3 * 2 * 31))
    batch = batch_of(driver, lengths)
    clean = driver.to_host(driver.attention(driver.from_host(qkv.copy()), batch, num_heads=2))
    qkv[7:40] = np.nan
    got = driver.to_host(driver.attention(driver.from_host(qkv.copy()), batch, num_heads=2))
    assert np.isnan(got[7:40]).all()
    for rows in (slice(0, 7), slice(40, 45)):
        assert np.array_equal(got[rows], clean[rows])


def test_a_single_token_attends_to_itself_alone(driver, rng, dtype):
    (qkv,) = random(rng, dtype, (3, 3 * 31))
    got = driver.attention(driver.from_host(qkv.copy()), batch_of(driver, (1, 1, 1)), num_heads=1)
    assert np.array_equal(driver.to_host(got), qkv[:, 62:])


def test_attention_survives_products_that_float16_cannot_hold(driver, rng, dtype):
    """q . k reaches 102400 before the scale; the scaled logits and the answer are ordinary."""
    lengths, heads, dim = (7, 3), 2, 64
    qkv = rng.standard_normal((10, 3, heads, dim))
    qkv[:, :2] = 40 * rng.choice([-1.0, 1.0], (10, 2, heads, dim))
    qkv[:, 1] = qkv[:, 0]  # each query finds its own key
    qkv = qkv.reshape(10, -1).astype(dtype)
    got = driver.attention(driver.from_host(qkv.copy()), batch_of(driver, lengths), num_heads=heads)
    want = oracle.attention(qkv, lengths, num_heads=heads)
    budget = oracle.error_budget(want, dtype, terms=dim, scale=float(np.abs(want).max()))
    assert oracle.max_error(driver, got, want) <= budget


def test_attention_refuses_foreign_tokens_padded_batches_and_uneven_heads(any_driver):
    batch = batch_of(any_driver, [2, 3])
    with pytest.raises(ShapeError, match=r"attention: tokens have shape \(4, 12\), wanted \(5, "):
        any_driver.attention(any_driver.alloc_zeros((4, 12)), batch, num_heads=2)
    with pytest.raises(ShapeError, match=r"\(5, 13\), wanted a last dimension of 3E"):
        any_driver.attention(any_driver.alloc_zeros((5, 13)), batch, num_heads=2)
    with pytest.raises(ShapeError, match="3 heads do not divide the hidden size 4"):
        any_driver.attention(any_driver.alloc_zeros((5, 12)), batch, num_heads=3)
    padded = any_driver.prepare_batch([Encoding(np.ones(2, np.int32))], 5)
    with pytest.raises(ShapeError, match="attention: wanted an unpadded batch"):
        any_driver.attention(any_driver.alloc_zeros((2, 12)), padded, num_heads=2)
