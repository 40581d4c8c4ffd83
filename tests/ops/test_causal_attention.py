"""Causal attention: all forms against each other and float64, and nothing flows backwards."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DtypeError, NullDriver, ShapeError
from drivers.causal_attention import PLANS_KEPT, CausalAttention, CausalConfig
from tests import oracle
from tests.ops.contract import nans

WHOLE = ["parallel_multihead_attention_gpu_cached", "single_dispatch_multihead_attention"]
SIZES = [1, 7, 31, 33, 129]
CONFIGS = {
    "one head": CausalConfig(1, 1, 7),
    "heads": CausalConfig(3, 3, 33),
    "grouped": CausalConfig(6, 2, 31),
    "one kv head": CausalConfig(4, 1, 32),
    "scaled": CausalConfig(4, 2, 5, scale=0.125),
}

each_form = pytest.mark.parametrize("form", WHOLE)


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def inputs(rng, config, dtype, seq, batch=2):
    """q, k, v (B, S, heads * D)."""
    heads = (config.num_heads, config.kv_heads, config.kv_heads)
    return [rng.standard_normal((batch, seq, n * config.head_dim)).astype(dtype) for n in heads]


def run(driver, config, form, arrays, **options):
    causal = CausalAttention(driver, config)
    got = getattr(causal, form)(*(driver.from_host(x.copy()) for x in arrays), **options)
    return driver.to_host(got)


def attend(
    q, k, v, config, scale=None, visible=lambda query, key: key <= query, kv_head=None
) -> np.ndarray:
    """The formula, one sequence, head and query at a time, in float64."""
    dim = config.head_dim
    scale = config.score_scale if scale is None else scale
    kv_head = kv_head or (lambda n: n // (config.num_heads // config.kv_heads))
    out = np.zeros(q.shape)
    position = np.arange(q.shape[1])
    for row in range(len(q)):
        for n in range(config.num_heads):
            own, shared = slice(n * dim, (n + 1) * dim), slice(kv_head(n) * dim, None)
            keys, values = (oracle.wide(x[row])[:, shared][:, :dim] for x in (k, v))
            for i, query in enumerate(oracle.wide(q[row])[:, own]):
                seen = visible(i, position)
                logits = keys[seen] @ query * scale
                powers = np.exp(logits - logits.max(initial=-np.inf))
                out[row, i, own] = powers @ values[seen] / max(powers.sum(), 1e-300)
    return out


def causal_budget(q, k, v, want, config, dtype):
    """A float32 logit errs by e, so a weight by its own share times exp(2 e) - 1."""
    dim = config.head_dim
    largest = float(np.abs(oracle.wide(v)).max())
    terms = [oracle.wide(x).reshape(-1, dim) for x in (q, k)]
    size = float(np.prod([np.sqrt((x**2).sum(axis=-1)).max() for x in terms]))
    logit = config.score_scale * oracle.FLOAT32_ROUNDING * np.sqrt(dim) * size
    budget = oracle.error_budget(want, dtype, terms=q.shape[1] + 8, scale=largest)
    return budget + largest * float(np.expm1(2 * logit))


# ---- the whole


@each_form
@pytest.mark.parametrize("seq", SIZES)
def test_each_form_matches_the_oracle(driver, rng, dtype, config, seq, form):
    arrays = inputs(rng, config, dtype, seq)
    got = run(driver, config, form, arrays)
    want = attend(*arrays, config)
    assert got.dtype == dtype
    assert oracle.max_difference(got, want) <= causal_budget(*arrays, want, config, dtype)


@pytest.mark.parametrize("seq", SIZES)
def test_one_dispatch_equals_head_by_head(driver, rng, dtype, config, seq):
    """Each within its budget of the exact answer, so within two of each other."""
    arrays = inputs(rng, config, dtype, seq)
    by_head, at_once = (run(driver, config, form, arrays) for form in WHOLE)
    budget = causal_budget(*arrays, attend(*arrays, config), config, dtype)
    assert oracle.max_difference(at_once, by_head) <= 2 * budget


@each_form
@pytest.mark.parametrize("changed", [0, 1, 16, 31, 32])
@pytest.mark.parametrize("size", [1.0, 1e4], ids=["ordinary", "large"])
def test_a_changed_token_leaves_every_earlier_output_bit_identical(
    driver, rng, dtype, form, changed, size
):
    config = CONFIGS["grouped"]
    arrays = inputs(rng, config, dtype, 33)
    before = run(driver, config, form, arrays)
    for x in arrays:
        x[:, changed] = (size * rng.standard_normal(x[:, changed].shape)).astype(dtype)
    after = run(driver, config, form, arrays)
    assert np.array_equal(after[:, :changed], before[:, :changed])
    assert not np.array_equal(after[:, changed], before[:, changed])


@each_form
def test_padding_behind_a_sequence_changes_nothing_within_rounding(driver, rng, dtype, form):
    config = CONFIGS["grouped"]
    arrays = inputs(rng, config, dtype, 33)
    short = [np.ascontiguousarray(x[:, :7]) for x in arrays]
    want = attend(*short, config)
    got = run(driver, config, form, arrays)[:, :7]
    assert oracle.max_difference(got, want) <= causal_budget(*short, want, config, dtype)


@each_form
def test_the_first_token_attends_only_to_itself(driver, rng, dtype, config, form):
    q, k, v = inputs(rng, config, dtype, 31)
    got = run(driver, config, form, [q, k, v])
    heads = v[:, 0].reshape(2, config.kv_heads, config.head_dim)
    own = heads.repeat(config.num_heads // config.kv_heads, axis=1)
    assert np.array_equal(got[:, 0], own.reshape(2, -1))


@each_form
def test_equal_values_come_through_unchanged(driver, rng, config, form):
    """Weights that sum to 1 give back what all values share."""
    q, k, v = inputs(rng, config, np.float32, 33)
    v[:] = 1
    assert np.abs(run(driver, config, form, [q, k, v]) - 1).max() <= 33 * oracle.FLOAT32_ROUNDING


@each_form
@pytest.mark.parametrize("sign", [1, -1])
def test_products_that_float16_cannot_hold_stay_finite(driver, rng, dtype, form, sign):
    config = CausalConfig(4, 2, 64)
    q, k, v = inputs(rng, config, dtype, 33)
    q[:], k[:] = 200, sign * 200  # q . k is 2,560,000 for every pair: all keys weigh the same
    got = run(driver, config, form, [q, k, v])
    want = attend(q, k, v, config)
    largest = float(np.abs(v).max())
    assert np.isfinite(got).all()
    assert oracle.max_difference(got, want) <= oracle.error_budget(
        want, dtype, terms=41, scale=largest
    )


@each_form
def test_out_is_written_and_may_be_the_queries(driver, rng, dtype, config, form):
    arrays = inputs(rng, config, dtype, 31)
    want = run(driver, config, form, arrays)
    fresh = nans(driver, want.shape, dtype)
    assert np.array_equal(run(driver, config, form, arrays, out=fresh), want)
    assert np.array_equal(driver.to_host(fresh), want)
    tensors = [driver.from_host(x.copy()) for x in arrays]
    got = getattr(CausalAttention(driver, config), form)(*tensors, out=tensors[0])
    assert got is tensors[0]
    assert np.array_equal(driver.to_host(got), want)
    for tensor, before in zip(tensors[1:], arrays[1:]):
        assert np.array_equal(driver.to_host(tensor), before)


def test_wrong_variants_are_far_from_what_both_forms_give(driver, rng, dtype):
    config = CONFIGS["grouped"]
    arrays = q, k, v = inputs(rng, config, dtype, 31)
    want = attend(*arrays, config)
    budget = causal_budget(*arrays, want, config, dtype)
    wrong = {
        "one key too many": attend(*arrays, config, visible=lambda i, key: key <= i + 1),
        "itself left out": attend(*arrays, config, visible=lambda i, key: key < i),
        "not masked": attend(*arrays, config, visible=lambda i, key: key >= 0),
        "mask transposed": attend(*arrays, config, visible=lambda i, key: key >= i),
        "not scaled": attend(*arrays, config, scale=1.0),
        "scaled by the hidden size": attend(*arrays, config, scale=(6 * 31) ** -0.5),
        "kv heads in turn": attend(*arrays, config, kv_head=lambda n: n % config.kv_heads),
        "one kv head for all": attend(*arrays, config, kv_head=lambda n: 0),
        "k and v swapped": attend(q, v, k, config),
    }
    for form in WHOLE:
        got = run(driver, config, form, arrays)
        assert oracle.max_difference(got, want) <= budget
        for name, variant in wrong.items():
            assert oracle.max_difference(variant.astype(dtype), want) > 100 * budget, name


# ---- plans and dispatches


@each_form
def test_the_second_call_of_a_shape_is_a_plan_hit_with_the_same_answer(driver, rng, dtype, form):
    config = CONFIGS["grouped"]
    causal = CausalAttention(driver, config)
    arrays = inputs(rng, config, dtype, 31)
    other = inputs(rng, config, dtype, 31)
    answers = []
    for case in (arrays, other, arrays):
        got = getattr(causal, form)(*(driver.from_host(x.copy()) for x in case))
        answers.append(driver.to_host(got))
    assert (causal.plan.hits, causal.plan.misses) == (2, 1)
    assert np.array_equal(answers[0], answers[2])
    assert not np.array_equal(answers[0], answers[1])


@each_form
def test_a_plan_outlives_the_scope_of_the_pool_it_was_made_in(driver, rng, dtype, form):
    config = CONFIGS["grouped"]
    causal = CausalAttention(driver, config)
    arrays = inputs(rng, config, dtype, 31)
    want = run(driver, config, form, arrays)
    for _ in range(3):
        saved = driver.save_pool_cursor()
        got = getattr(causal, form)(*(driver.from_host(x.copy()) for x in arrays))
        driver.restore_pool_cursor(saved)
        assert np.array_equal(driver.to_host(got), want)


def calls_of(config, form, times=1, batch=2, seq=33):
    """How often each primitive was called by the last of `times` calls, and the FLOPs it took."""
    null = NullDriver()
    causal = CausalAttention(null, config)
    tensors = [
        null.alloc_zeros((batch, seq, n * config.head_dim))
        for n in (config.num_heads, config.kv_heads, config.kv_heads)
    ]
    for _ in range(times):
        null.tally.calls_total.clear()
        null.tally.flops_total = 0
        got = getattr(causal, form)(*tensors)
    assert got.shape == tensors[0].shape
    assert causal.plan.hits == times - 1
    return null.tally


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_single_dispatch_form_never_grows_with_the_heads(config, batch):
    tally = calls_of(config, WHOLE[1], times=2, batch=batch)
    assert dict(tally.calls_total) == {
        "split_heads": 3,
        "gemm_batched": 2,
        "causal_softmax": 1,
        "attn_reshape": 1,
    }


def test_the_first_call_makes_the_plan_and_the_second_allocates_none(config):
    assert calls_of(config, WHOLE[0], times=1).calls_total["alloc_zeros"] == 2
    tally = calls_of(config, WHOLE[0], times=2)
    assert "alloc_zeros" not in tally.calls_total
    assert tally.calls_total["gemm"] == 2 * 2 * config.num_heads
    assert tally.calls_total["causal_softmax"] == 2 * config.num_heads


@each_form
def test_flops_are_two_products_of_all_heads(config, form):
    heads = 2 * config.num_heads
    assert calls_of(config, form).flops_total == 2 * heads * 2 * 33 * 33 * config.head_dim


@pytest.mark.parametrize("groups", [1, 4, 5, 64])
def test_a_batched_product_is_one_dispatch_whatever_its_size(groups):
    null = NullDriver()
    causal = CausalAttention(null, CONFIGS["heads"])
    a, b = null.alloc_zeros((groups, 7, 31)), null.alloc_zeros((groups, 31, 33))
    null.tally.calls_total.clear()
    assert causal.batched_gemm_single_dispatch(a, b).shape == (groups, 7, 33)
    assert dict(null.tally.calls_total) == {"gemm_batched": 1}


@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_batched_product_matches_the_oracle(driver, rng, dtype, transpose_b):
    shapes = [(5, 7, 31), (5, 33, 31) if transpose_b else (5, 31, 33)]
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    causal = CausalAttention(driver, CONFIGS["heads"])
    got = causal.batched_gemm_single_dispatch(
        driver.from_host(a), driver.from_host(b), transpose_b=transpose_b
    )
    want = oracle.gemm(a, b, transpose_b=transpose_b)
    scale = oracle.gemm_scale(a, b, transpose_b=transpose_b)
    budget = oracle.error_budget(want, dtype, terms=31, scale=scale)
    assert oracle.max_error(driver, got, want) <= budget


def test_plans_are_told_apart_by_shape_and_storage_and_the_oldest_goes():
    null = NullDriver()
    causal = CausalAttention(null, CONFIGS["heads"])

    def call(seq, dtype=np.float32):
        causal.single_dispatch_multihead_attention(
            *(null.alloc_zeros((1, seq, 99), dtype) for _ in range(3))
        )
        return causal.plan.hits, causal.plan.misses

    assert call(1) == (0, 1)
    assert call(1, np.float16) == (0, 2)
    for extra, seq in enumerate(range(2, PLANS_KEPT), start=3):
        assert call(seq) == (0, extra)
    assert call(1) == (1, PLANS_KEPT)
    assert call(PLANS_KEPT) == (1, PLANS_KEPT + 1)  # in the place of (1, float16)
    assert call(1) == (2, PLANS_KEPT + 1)
    assert call(1, np.float16) == (2, PLANS_KEPT + 2)


@each_form
@pytest.mark.parametrize(("batch", "seq"), [(0, 7), (2, 0)])
def test_an_empty_batch_gives_an_empty_answer(any_driver, form, batch, seq):
    config = CONFIGS["grouped"]
    tensors = [any_driver.alloc_zeros((batch, seq, n * 31)) for n in (6, 2, 2)]
    assert getattr(CausalAttention(any_driver, config), form)(*tensors).shape == (batch, seq, 186)


# ---- refusals


@each_form
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(7, 186), (7, 62), (7, 62)], r"q has shape \(7, 186\), wanted \(\*, \*, 186\)"),
        ([(1, 7, 185), (1, 7, 62), (1, 7, 62)], r"q has shape \(1, 7, 185\), wanted"),
        ([(1, 7, 186), (1, 7, 186), (1, 7, 62)], r"k has shape .*wanted \(1, 7, 62\)"),
        ([(1, 7, 186), (1, 7, 62), (1, 8, 62)], r"v has shape .*wanted \(1, 7, 62\)"),
    ],
)
def test_what_does_not_fit_the_config_is_refused_by_name(any_driver, form, shapes, message):
    causal = CausalAttention(any_driver, CONFIGS["grouped"])
    with pytest.raises(ShapeError, match=f"^{form}: {message}"):
        getattr(causal, form)(*(any_driver.alloc_zeros(shape) for shape in shapes))


@each_form
def test_mixed_and_foreign_dtypes_are_refused(any_driver, form):
    causal = CausalAttention(any_driver, CONFIGS["heads"])
    q, k = any_driver.alloc_zeros((1, 7, 99)), any_driver.alloc_zeros((1, 7, 99), np.float16)
    with pytest.raises(DtypeError, match=f"^{form}: v has dtype float16, q has float32"):
        getattr(causal, form)(q, q, k)
    wide = any_driver.alloc_zeros((1, 7, 99), np.float64)
    with pytest.raises(DtypeError, match=f"^{form}: got dtype float64"):
        getattr(causal, form)(wide, wide, wide)


@pytest.mark.parametrize("sizes", [(6, 4, 8), (2, 4, 8), (0, 1, 8), (4, 0, 8), (4, 2, 0)])
def test_heads_that_do_not_divide_are_refused(sizes):
    with pytest.raises(ShapeError, match="kv heads do not divide"):
        CausalConfig(*sizes)
