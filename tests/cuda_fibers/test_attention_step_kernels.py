"""What the kernels of attention's steps do beyond the tests that every driver passes: rows of every
build, mixed types, bfloat16, and mistakes that the fibers must show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from drivers.cuda.launches import banded, rotary, softmax
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.types import MASK_VALUE
from tests import oracle
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.engine import ORDERS, FiberError
from tests.cuda_fibers.planted import Edit, shows
from tests.ops.contract import nans, softmax_budget


@dataclass(frozen=True)
class Case:
    """A call of an operation, what it should give, and what it may err by in float32."""

    op: str
    inputs: list[Any]
    options: dict[str, Any]
    want: np.ndarray
    budget: float

    def run(self, driver, dtype):
        """The result in a dtype, on the host."""
        bias = self.options.get("position_bias")
        options = self.options if bias is None else self.options | {"position_bias": up(bias)}
        tensors = [driver.from_host(x) for x in self.inputs]
        out = nans(driver, self.want.shape, dtype)
        assert getattr(driver, self.op)(*tensors, **options, out=out) is out
        return driver.to_host(out)

    def allowed(self, dtype):
        return self.budget + 2 * oracle.rounding_error(finite(self.want), dtype)


def up(array):
    return fiber_driver("shuffled").from_host(array)


def finite(x):
    return np.where(np.isneginf(x), -1, oracle.wide(x))


def masked(rng, dtype, seq, *, batch=2, heads=2, left=None, right=None, biased=False):
    scores = (4 * rng.standard_normal((batch * heads, seq, seq))).astype(dtype)
    mask = np.where(rng.random((batch, seq)) < 0.8, rng.standard_normal((batch, seq)), MASK_VALUE)
    mask[0, 3 * seq // 4 :] = -5000
    options = {"num_heads": heads, "scale": 0.3, "window_left": left, "window_right": right}
    if biased:
        options["position_bias"] = rng.standard_normal((heads, 2 * seq + 5)).astype(np.float32)
    mask = mask.astype(np.float32)
    want = oracle.masked_softmax(scores, mask, **options)
    budget = softmax_budget(scores, 0.3, want, FLOAT32, 8.0)
    return Case("fused_scale_mask_softmax", [scores, mask], options, want, budget)


def causal(rng, dtype, seq):
    scores = (4 * rng.standard_normal((3, seq, seq))).astype(dtype)
    want = oracle.masked_softmax(scores, np.zeros((3, seq)), num_heads=1, scale=0.3, window_right=0)
    scores[:, np.triu(np.ones((seq, seq), bool), k=1)] = np.nan
    budget = softmax_budget(np.nan_to_num(oracle.wide(scores)), 0.3, want, FLOAT32)
    return Case("causal_softmax", [scores], {"scale": 0.3}, want, budget)


def band(rng, dtype, window, *, seq=37, lengths=(37, 20)):
    scores = (4 * rng.standard_normal((4, seq, window))).astype(dtype)
    at = oracle.band_keys(seq, window)
    scores[:, (at < 0) | (at >= seq)] = -np.inf
    options = {"scale": -0.3, "seq_lengths": lengths}
    want = oracle.banded_softmax(scores, **options)
    budget = softmax_budget(scores, 0.3, want, FLOAT32)
    return Case("banded_softmax", [scores], options, want, budget)


def banded_qk(rng, left, right, *, seq=70, dim=70, window=21):
    q, k = rng.standard_normal((4, seq, dim)).astype(left), rng.standard_normal((2, seq, dim))
    k = k.astype(right)
    want = oracle.banded_qk(q, k, window=window)
    scale = oracle.gemm_scale(q, np.repeat(k, 2, axis=0), transpose_b=True)
    budget = oracle.error_budget(finite(want), FLOAT32, terms=dim, scale=scale)
    return Case("banded_qk", [q, k], {"window": window}, want, budget)


def banded_sv(rng, left, right, *, seq=70, dim=70, window=21):
    weights = rng.standard_normal((4, seq, window)).astype(left)
    v = rng.standard_normal((2, seq, dim)).astype(right)
    want = oracle.banded_sv(weights, v)
    budget = oracle.error_budget(want, FLOAT32, terms=window, scale=16 * window**0.5)
    return Case("banded_sv", [weights, v], {}, want, budget)


def rope(rng, dtype, *, seq=33, dim=72, rotary=40):
    x = rng.standard_normal((4, seq, dim)).astype(dtype)
    tables = [rng.standard_normal((2, seq + 3, rotary // 2)).astype(np.float32) for _ in range(2)]
    want = oracle.rotate(x, *(np.repeat(t, 2, axis=0) for t in tables))
    budget = oracle.error_budget(want, FLOAT32, terms=3, scale=16)
    return Case("apply_rope", [x, *tables], {}, want, budget)


def check(case, dtype, order="warp_greedy"):
    driver = fiber_driver(order)
    got = case.run(driver, dtype)
    assert driver.launches_total == 1
    assert got.dtype == dtype
    assert np.array_equal(np.isneginf(got), np.isneginf(case.want))
    assert oracle.max_difference(finite(got), finite(case.want)) <= case.allowed(dtype)


# ---- rows of every build


@pytest.mark.parametrize("seq", [124, 127, 128, 129, 132, 511, 512, 513, 516])
def test_masked_rows_of_every_width(rng, seq):
    options = {"batch": 1, "heads": 1} if seq > 200 else {}
    check(masked(rng, FLOAT16, seq, **options), FLOAT16)
    check(masked(rng, FLOAT32, seq, left=9, right=40, biased=True, **options), FLOAT32)


@pytest.mark.parametrize("seq", [128, 129, 513, 516])
def test_causal_rows_of_every_width(rng, seq):
    case = causal(rng, FLOAT16, seq)
    check(case, FLOAT16)


@pytest.mark.parametrize("window", [1, 31, 129, 159, 160, 161, 1025])
def test_bands_of_every_width(rng, window):
    check(band(rng, FLOAT16, window), FLOAT16)


@pytest.mark.parametrize(("seq", "dim", "window"), [(1, 1, 1), (31, 64, 129), (65, 129, 2)])
def test_banded_products_of_other_tiles(rng, seq, dim, window):
    sizes = {"seq": seq, "dim": dim, "window": window}
    check(banded_qk(rng, FLOAT32, FLOAT32, **sizes), FLOAT32)
    check(banded_sv(rng, FLOAT32, FLOAT32, **sizes), FLOAT32)


@pytest.mark.parametrize(("dim", "rotary"), [(72, 40), (71, 40), (72, 38), (72, 72), (7, 0)])
def test_heads_that_turn_in_part(rng, dim, rotary):
    check(rope(rng, FLOAT32, dim=dim, rotary=rotary), FLOAT32)


def test_a_value_outside_the_band_leaves_no_trace_where_its_tile_is_read(rng):
    case = banded_sv(rng, FLOAT32, FLOAT32, window=4)
    case.inputs[1][:, 40] = np.nan
    got = case.run(fiber_driver("shuffled"), FLOAT32)
    touched = (np.arange(70) >= 39) & (np.arange(70) <= 42)  # 40 is at -2 .. 1 from them
    assert np.isnan(got[:, touched]).all()
    clean = np.abs(got[:, ~touched] - case.want[:, ~touched])
    assert clean.max() <= case.allowed(FLOAT32)


@pytest.mark.parametrize("seq", [33, 36, 516])
def test_a_row_has_the_same_bits_whatever_its_batch(rng, seq):
    scores = rng.standard_normal((3, seq, seq)).astype(FLOAT16)
    mask = np.where(rng.random((3, seq)) < 0.8, 0, MASK_VALUE).astype(np.float32)
    driver = fiber_driver("warp_greedy")

    def weights(rows):
        tensors = map(driver.from_host, (scores[rows], mask[rows]))
        return driver.to_host(driver.fused_scale_mask_softmax(*tensors, num_heads=1, scale=0.3))

    assert np.array_equal(weights(slice(1, 2)), weights(slice(0, 3))[1:2])


# ---- types


MIXES = [(FLOAT16, FLOAT16), (FLOAT16, FLOAT32), (FLOAT32, FLOAT16)]
MIXES += [(BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT32), (FLOAT32, BFLOAT16)]


@pytest.mark.parametrize(("given", "asked"), MIXES, ids=str)
def test_inputs_and_results_of_different_types(rng, given, asked):
    check(masked(rng, given, 33), asked)
    check(masked(rng, given, 36, biased=True), asked)
    check(causal(rng, given, 31), asked)
    check(band(rng, given, 21), asked)
    check(rope(rng, given), asked)
    check(rope(rng, given, dim=31, rotary=14), asked)
    for other in (given, FLOAT32):
        check(banded_qk(rng, given, other), asked)
        check(banded_qk(rng, other, given), asked)
        check(banded_sv(rng, given, other), asked)
        check(banded_sv(rng, other, given), asked)


@pytest.mark.parametrize("op", ["causal_softmax", "banded_softmax"])
def test_two_narrow_types_beside_each_other_are_refused(op):
    driver = fiber_driver("shuffled")
    scores = driver.alloc_zeros((3, 7, 7), FLOAT16)
    out = driver.alloc_zeros((3, 7, 7), BFLOAT16)
    with pytest.raises(DtypeError, match=f"^{op}: got dtypes bfloat16 and float16, wanted one"):
        getattr(driver, op)(scores, scale=1.0, out=out)


# ---- the order of the threads, and planted mistakes


def all_cases(rng, dtype):
    return [
        masked(rng, dtype, 33, left=5, right=3),
        masked(rng, dtype, 36, biased=True),
        masked(rng, dtype, 513, batch=1, heads=1),
        band(rng, dtype, 21),
        banded_qk(rng, dtype, dtype),
        banded_sv(rng, dtype, dtype),
        rope(rng, dtype),
    ]


def test_the_order_of_the_threads_changes_no_bit(rng):
    for case in all_cases(rng, FLOAT16):
        answers = [case.run(fiber_driver(order), FLOAT16) for order in ORDERS]
        assert all(np.array_equal(answer, answers[0]) for answer in answers)


def caught(edit, case):
    """Whether a mistake gives a wrong answer or ends the launch in some order."""

    def error(order):
        try:
            got = case.run(fiber_driver(order, edit), FLOAT32)
        except FiberError:
            return np.inf
        return oracle.max_difference(finite(got), finite(case.want))

    return shows(error, 100 * case.budget)


SHORT, LONG, BAND = "short", "long", "band"
SOFTMAX_MISTAKES = {
    "peak of a lane alone": ("peak = warp_max(peak);", ";", SHORT),
    "sum of a lane alone": ("1.0f / warp_sum(total);", "1.0f / total;", SHORT),
    "first key left out": ("column + i >= first &&", "column + i > first &&", SHORT),
    "one key behind the window": ("&& column + i < end;", "&& column + i <= end;", SHORT),
    "mask of -5000 is only added": ("added <= MASKED_AT", "added < MASKED_AT", SHORT),
    "mask of another sequence": ("(group / num_heads) * seq", "(group % num_heads) * seq", SHORT),
    "bias of the distance backwards": ("(positions - 1 - query)", "(positions - 1 + query)", SHORT),
    "bias of another head": ("(group % num_heads) *", "(group / num_heads) *", SHORT),
    "not scaled": ("return score * scale + (", "return score + (", SHORT),
    "no zeros for a masked row": ("power[i] == 0.0f ? 0.0f : ", "", SHORT),
    "a last row too many": ("if (query >= seq) return;  // the whole warp\n    const int first =",
                            "const int first =", SHORT),
    "left edge one too wide": ("query - window_left)", "query - window_left - 1)", SHORT),
    "right edge one too narrow": ("query + window_right + 1)", "query + window_right)", SHORT),
    "sum not rescaled": ("total *= expf(peak - x[i]);", ";", LONG),
    "sums of lanes not rescaled": (": total * expf(peak - shift)", ": total", LONG),
    "masked keys counted": ("if (x[i] == -INFINITY) continue;", "", LONG),
    "start of a window missed": ("first / STEP * STEP + own", "first + own", LONG),
    "padding of a band seen": ("- first_key) : window", "- first_key + 1) : window", BAND),
    "-inf is scaled": ("score == -INFINITY ? score : ", "", BAND),
    "band of another row": ("+ query) * window;", "+ query / 2) * window;", BAND),
}  # fmt: skip


@pytest.mark.parametrize("name", SOFTMAX_MISTAKES)
def test_a_planted_mistake_in_the_softmax_shows(rng, name):
    before, after, where = SOFTMAX_MISTAKES[name]
    case, kernel = {
        SHORT: (masked(rng, FLOAT32, 37, batch=3, left=9, right=3, biased=True), "masked_{}_128_1"),
        LONG: (masked(rng, FLOAT32, 516, batch=1, heads=1, left=301), "masked_{}_0_4"),
        BAND: (band(rng, FLOAT32, 21), "banded_{}_160"),
    }[where]
    only = (kernel.format("softmax_ss"),)
    assert caught(Edit("softmax", before, after, until="SOFTMAXES(sf", only=only), case)


QK_MISTAKES = {
    "no barrier after the tiles are loaded": ("__syncthreads();  // the tiles are complete", ";"),
    "no barrier before the tiles are replaced": (
        "__syncthreads();  // every warp is done with the tiles", ";",
    ),
    "band one to the left": ("int row = first_row + warp, column = key - (row - window / 2);",
                             "int row = first_row + warp, column = key - (row - window / 2) - 1;"),
    "a key behind the sequence": ("key >= 0 && key < seq;", "key >= 0 && key <= seq;"),
    "a key before the sequence": ("key >= 0 && key < seq;", "key >= -1 && key < seq;"),
    "rows beyond the sequence written": ("if (row < seq && column >= 0 &&", "if (column >= 0 &&"),
    "keys of another head": ("group / heads_per_key_head", "group % heads_per_key_head"),
    "part of a head left out": ("min(DIMS, head_dim - dim)", "min(DIMS, head_dim - dim) - 1"),
    "rows of a step mixed up": ("column -= WARPS;", "column -= 1;"),
}  # fmt: skip
SV_MISTAKES = {
    "no barrier after the tiles are loaded": (
        "__syncthreads();  // values and weights are complete", ";",
    ),
    "no barrier before the tiles are replaced": (
        "__syncthreads();  // every warp is done with the tile\n    }\n#pragma", "}\n#pragma",
    ),
    "weights of the neighbour": ("of_keys[local_row * KEY_ROWS + j];",
                                 "of_keys[local_row * KEY_ROWS + (j ^ 1)];"),
    "values of another head": ("group / heads_per_value_head", "group % heads_per_value_head"),
    "last key left out": ("min(KEY_ROWS, end_key - tile)", "min(KEY_ROWS, end_key - tile - 1)"),
    "dimensions beyond a head written": ("if (d < head_dim) store", "store"),
    "first keys left out": ("max(0, first_row - window / 2)", "max(0, first_row)"),
}  # fmt: skip
ROPE_MISTAKES = {
    "turned the other way": ("a * c.at[i] - b * s.at[i]", "a * c.at[i] + b * s.at[i]"),
    "neighbours as pairs": ("x + row + pairs + pair)", "x + row + pair + 1)"),
    "table of another sequence": ("(group / heads_per_table)", "(group % heads_per_table)"),
    "position of another row": ("* positions + position)", "* seq + position)"),
    "positions behind the last": ("if (position >= seq) return;", ""),
    "the rest left out": ("store_pack(out + d, passed);", ""),
}
PRODUCT_MISTAKES = [
    *(("banded", "qk", name) for name in QK_MISTAKES),
    *(("banded", "sv", name) for name in SV_MISTAKES),
    *(("rotary", "rope", name) for name in ROPE_MISTAKES),
]


@pytest.mark.parametrize(("theme", "op", "name"), PRODUCT_MISTAKES)
def test_a_planted_mistake_in_a_product_or_a_rotation_shows(rng, theme, op, name):
    case, kernel, until, mistakes = {
        "qk": (banded_qk(rng, FLOAT32, FLOAT32), "banded_qk_sss", "BANDED(ssf", QK_MISTAKES),
        "sv": (banded_sv(rng, FLOAT32, FLOAT32), "banded_sv_sss", "BANDED(ssf", SV_MISTAKES),
        "rope": (rope(rng, FLOAT32), "apply_rope_ss_4", "APPLY_ROPE(sf, 1", ROPE_MISTAKES),
    }[op]
    assert caught(Edit(theme, *mistakes[name], until=until, only=(kernel,)), case)


# ---- launch arithmetic


@pytest.mark.parametrize(
    ("seq", "kernel"),
    [
        (1, "128_1"), (4, "128_4"), (128, "128_4"), (129, "512_1"), (132, "512_4"),
        (512, "512_4"), (513, "0_1"), (516, "0_4"),
    ],
)  # fmt: skip
def test_a_row_goes_to_the_narrowest_build_that_keeps_it(seq, kernel):
    got = softmax.masked_softmax(mix="ss", groups=24, seq=seq)
    assert got.kernel == f"masked_softmax_ss_{kernel}"
    assert got.kernel in softmax.KERNELS
    assert got.grid == (24 * -(-seq // 8), 1, 1)


def test_a_band_of_129_is_kept():
    for window, width in ((129, 160), (160, 160), (161, 0)):
        got = softmax.banded_softmax(mix="sf", groups=2, seq=9, window=window)
        assert got.kernel == f"banded_softmax_sf_{width}"
        assert got.grid == (4, 1, 1)


def test_the_grids_of_the_other_steps():
    assert banded.banded_qk(mix="fss", groups=3, seq=33).grid == (6, 1, 1)
    got = banded.banded_sv(mix="sfs", groups=3, seq=32, head_dim=65)
    assert (got.kernel, got.grid) == ("banded_sv_sfs", (3, 2, 1))
    sizes = {"mix": "ss", "groups": 3, "seq": 64, "passing": 0}
    assert rotary.apply_rope(**sizes, head_dim=64, pairs=32).kernel == "apply_rope_ss_4"
    assert rotary.apply_rope(**sizes, head_dim=64, pairs=32).grid == (6, 1, 1)
    assert rotary.apply_rope(**sizes, head_dim=66, pairs=32).kernel == "apply_rope_ss_1"
    assert rotary.apply_rope(**sizes, head_dim=64, pairs=30).kernel == "apply_rope_ss_1"


@pytest.mark.parametrize(
    "launch",
    [
        lambda: softmax.masked_softmax(mix="ss", groups=2**31, seq=1),
        lambda: softmax.banded_softmax(mix="ss", groups=2**28, seq=64, window=3),
        lambda: banded.banded_qk(mix="sss", groups=2**30, seq=64),
        lambda: banded.banded_sv(mix="sss", groups=1, seq=1, head_dim=2**23),
        lambda: rotary.apply_rope(mix="ss", groups=1, seq=2**26, head_dim=66, pairs=33, passing=0),
        lambda: rotary.apply_rope(mix="ss", groups=2**31, seq=1, head_dim=8, pairs=4, passing=0),
    ],
)
def test_more_than_a_grid_holds_is_refused(launch):
    with pytest.raises(ShapeError, match="wanted at most"):
        launch()
