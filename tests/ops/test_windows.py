"""The masked softmax with a window on either side and with a bias by distance."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from drivers.types import MASK_VALUE
from tests import oracle
from tests.ops.contract import check_op, softmax_budget

SIZES = [(1, 1, 1), (2, 3, 7), (3, 2, 31), (1, 2, 33)]  # B, N, S
REACHES = [(None, 0), (0, None), (0, 0), (3, 1), (1, 3), (None, 2), (40, 40)]


def case(rng, dtype, batch, heads, seq):
    scores = (rng.standard_normal((batch * heads, seq, seq)) * 4).astype(dtype)
    lengths = rng.integers(1, seq + 1, batch)
    mask = np.where(np.arange(seq) < lengths[:, None], 0, MASK_VALUE).astype(np.float32)
    return scores, mask


@pytest.mark.parametrize("window", [0, 1, 2, 7, 8, 100])
@pytest.mark.parametrize(("batch", "heads", "seq"), SIZES)
def test_windowed_softmax_matches_oracle(driver, rng, dtype, batch, heads, seq, window):
    scores, mask = case(rng, dtype, batch, heads, seq)
    options = {"num_heads": heads, "scale": 0.3}
    reach = window // 2
    want = oracle.masked_softmax(scores, mask, window_left=reach, window_right=reach, **options)
    budget = softmax_budget(scores, 0.3, want, dtype, mask)
    op, options["window"] = "fused_scale_mask_softmax_windowed", window
    check_op(driver, op, [scores, mask], want, budget, dtype=dtype, may_alias=[0], **options)


@pytest.mark.parametrize(("left", "right"), REACHES)
@pytest.mark.parametrize(("batch", "heads", "seq"), SIZES)
def test_each_side_of_the_window_is_its_own(driver, rng, dtype, batch, heads, seq, left, right):
    scores, mask = case(rng, dtype, batch, heads, seq)
    options = {"num_heads": heads, "scale": 0.3, "window_left": left, "window_right": right}
    want = oracle.masked_softmax(scores, mask, **options)
    budget = softmax_budget(scores, 0.3, want, dtype, mask)
    op = "fused_scale_mask_softmax"
    check_op(driver, op, [scores, mask], want, budget, dtype=dtype, may_alias=[0], **options)


@pytest.mark.parametrize("reach", [0, 1, 4, 64])
def test_num_12_both_ends_of_the_window_are_inside(driver, reach):
    """Offsets -reach .. reach, the query itself among them, and not one more."""
    scores = driver.alloc_zeros((1, 130, 130))
    mask = driver.alloc_zeros((1, 130))
    got = driver.fused_scale_mask_softmax_windowed(
        scores, mask, num_heads=1, scale=1.0, window=2 * reach
    )
    seen = np.flatnonzero(driver.to_host(got)[0, 65])
    assert seen.tolist() == list(range(65 - reach, 65 + reach + 1))


def test_num_15_a_query_whose_window_holds_only_padding_gives_zeros(driver, rng, dtype):
    scores, mask = case(rng, dtype, 2, 3, 33)
    mask[1] = np.where(np.arange(33) < 6, 0, MASK_VALUE)
    got = driver.to_host(
        driver.fused_scale_mask_softmax_windowed(
            *map(driver.from_host, (scores, mask)), num_heads=3, scale=1.0, window=8
        )
    )
    assert np.isfinite(got).all()
    assert not got[3:, 10:].any()
    assert got[3:, :10].any(axis=-1).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_outside_the_window_leaves_no_trace(driver, rng, dtype, poison):
    scores, mask = case(rng, dtype, 2, 3, 33)
    options = {"num_heads": 3, "scale": 0.5, "window": 8}

    def run():
        tensors = map(driver.from_host, (scores.copy(), mask))
        return driver.to_host(driver.fused_scale_mask_softmax_windowed(*tensors, **options))

    clean = run()
    scores[:, ~oracle.in_window(33, 33, 4, 4)] = poison
    assert np.array_equal(run(), clean)


@pytest.mark.parametrize("extra", [0, 1, 9])
@pytest.mark.parametrize(("batch", "heads", "seq"), SIZES)
def test_a_position_bias_is_added_by_head_and_distance(
    driver, rng, dtype, batch, heads, seq, extra
):
    scores, mask = case(rng, dtype, batch, heads, seq)
    bias = rng.standard_normal((heads, 2 * (seq + extra) - 1)).astype(np.float32)
    options = {"num_heads": heads, "scale": 0.3}
    want = oracle.masked_softmax(scores, mask, position_bias=bias, **options)
    added = float(np.abs(bias).max())
    budget = softmax_budget(scores, 0.3, want, dtype, added)
    check_op(
        driver,
        "fused_scale_mask_softmax",
        [scores, mask],
        want,
        budget,
        dtype=dtype,
        may_alias=[0],
        position_bias=driver.from_host(bias),
        **options,
    )


def test_the_bias_of_a_later_key_is_on_the_right_of_the_middle(driver):
    """Entry S - 1 + 1 alone is raised: every query but the last looks at the key after it."""
    bias = np.zeros((1, 9), np.float32)
    bias[0, 5] = 1000
    got = driver.fused_scale_mask_softmax(
        driver.alloc_zeros((1, 5, 5)),
        driver.alloc_zeros((1, 5)),
        num_heads=1,
        scale=1.0,
        position_bias=driver.from_host(bias),
    )
    assert driver.to_host(got)[0, :4].argmax(axis=-1).tolist() == [1, 2, 3, 4]
    assert np.ptp(driver.to_host(got)[0, 4]) == 0


def test_the_bias_is_not_scaled(driver):
    scores = driver.alloc_zeros((1, 2, 2))
    bias = np.array([[0, 0, 1]], np.float32)
    got = driver.fused_scale_mask_softmax(
        scores,
        driver.alloc_zeros((1, 2)),
        num_heads=1,
        scale=0.125,
        position_bias=driver.from_host(bias),
    )
    assert driver.to_host(got)[0, 0, 1] == pytest.approx(np.e / (1 + np.e), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_left": -1}, r"the window reaches \(-1, None\)"),
        ({"window_right": -3}, r"the window reaches \(None, -3\)"),
        ({"position_bias": (2, 5)}, r"position_bias has shape \(2, 5\), wanted \(3, \*\)"),
        ({"position_bias": (3, 11)}, r"wanted an odd width of at least 13"),
        ({"position_bias": (3, 14)}, r"wanted an odd width of at least 13"),
        ({"position_bias": (13,)}, r"position_bias has shape \(13,\)"),
    ],
)
def test_windows_and_biases_that_do_not_fit_are_refused(any_driver, options, message):
    if "position_bias" in options:
        options = {"position_bias": any_driver.alloc_zeros(options["position_bias"])}
    scores, mask = any_driver.alloc_zeros((6, 7, 7)), any_driver.alloc_zeros((2, 7))
    with pytest.raises(ShapeError, match=f"^fused_scale_mask_softmax: .*{message}"):
        any_driver.fused_scale_mask_softmax(scores, mask, num_heads=3, scale=1.0, **options)


def test_a_negative_window_is_refused(any_driver):
    scores, mask = any_driver.alloc_zeros((6, 7, 7)), any_driver.alloc_zeros((2, 7))
    with pytest.raises(ShapeError, match="^fused_scale_mask_softmax_windowed: the window reaches"):
        any_driver.fused_scale_mask_softmax_windowed(
            scores, mask, num_heads=3, scale=1.0, window=-1
        )


def test_a_position_bias_is_float32_and_nothing_else(driver):
    bias = driver.alloc_zeros((3, 13), np.float16)
    scores, mask = driver.alloc_zeros((6, 7, 7)), driver.alloc_zeros((2, 7))
    with pytest.raises(DtypeError, match="position_bias has dtype float16, wanted float32"):
        driver.fused_scale_mask_softmax(scores, mask, num_heads=3, scale=1.0, position_bias=bias)
