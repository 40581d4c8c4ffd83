"""Pool cursors: a scope's memory is used again, and nothing that is held ever changes."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from drivers import DriverError, Encoding, NullDriver, NumpyDriver
from drivers.types import NormWeights

TOKENS, HIDDEN, INNER, HEADS = 129, 65, 257, 5
WEIGHTS = {
    "qkv": (3 * HIDDEN, HIDDEN),
    "out": (HIDDEN, HIDDEN),
    "mlp_in": (2 * INNER, HIDDEN),
    "mlp_out": (HIDDEN, INNER),
}


def encoder(driver, layers, *, cursors=True, held=None):
    """A stack of layers over one set of weights, a pool scope around each: (T, E)."""
    rng = np.random.default_rng(1)
    w = {
        name: driver.from_host((rng.standard_normal(shape) * shape[1] ** -0.5).astype(np.float32))
        for name, shape in WEIGHTS.items()
    }
    ones = np.ones(HIDDEN, np.float32)
    norm = NormWeights(driver.from_host(ones), driver.from_host(0 * ones), 1e-5)
    batch = driver.prepare_batch_unpadded([Encoding(np.ones(TOKENS, np.int32))])
    x = driver.from_host(rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32))
    for _ in range(layers):
        saved = driver.save_pool_cursor() if cursors else None
        h = driver.attention(driver.linear(x, w["qkv"]), batch, num_heads=HEADS)
        x = driver.add_norm(driver.linear(h, w["out"]), x, norm)
        h = driver.gated_linear(x, w["mlp_in"], act="silu")
        x = driver.add_norm(driver.linear(h, w["mlp_out"]), x, norm)
        del h
        if held is not None:
            held.append(x)
        if cursors:
            driver.restore_pool_cursor(saved)
    return x


def peak_bytes(layers):
    """What the host allocated at once during a pass, beside what stood before it."""
    driver = NumpyDriver()
    encoder(driver, 1)
    gc.collect()
    tracemalloc.start()
    encoder(driver, layers)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_peak_bytes_of_24_layers_are_those_of_2():
    two, many = peak_bytes(2), peak_bytes(24)
    assert many <= 1.01 * two
    assert two > 4 * TOKENS * (3 * HIDDEN + 2 * INNER)  # the peak of one layer was seen


def test_every_layer_after_the_first_lives_in_the_memory_of_the_one_before():
    """Only the layer's output, which is held when its scope closes, is new in each."""
    fresh = {}
    for layers in (2, 24):
        driver = NumpyDriver()
        encoder(driver, layers)
        fresh[layers] = driver.pool_memory.fresh_bytes
    kept = 4 * TOKENS * HIDDEN
    assert 0 < fresh[24] - fresh[2] <= 22 * kept
    assert driver.pool_memory.reused_total >= 23 * 8


def test_peak_bytes_on_the_null_driver_do_not_grow_with_depth():
    peaks = []
    for layers in (2, 24):
        null = NullDriver()
        encoder(null, layers)
        peaks.append(null.tally.peak_bytes)
    assert peaks[0] == peaks[1]


def test_cursors_change_no_value():
    plain = encoder(NumpyDriver(), 4, cursors=False)
    assert np.array_equal(encoder(NumpyDriver(), 4), plain)


def test_a_tensor_that_is_held_keeps_its_values_however_often_memory_is_used_again():
    held = []
    encoder(NumpyDriver(), 6, held=held)
    for layers, kept in enumerate(held, start=1):
        assert np.array_equal(kept, encoder(NumpyDriver(), layers, cursors=False))


def test_a_view_holds_its_memory_as_the_tensor_does():
    driver = NumpyDriver()
    saved = driver.save_pool_cursor()
    view = driver.residual_add(np.ones((4, 8), np.float32), np.ones((4, 8), np.float32))[1:3].T
    driver.restore_pool_cursor(saved)
    driver.save_pool_cursor()
    driver.residual_add(np.zeros((4, 8), np.float32), np.zeros((4, 8), np.float32))
    assert (view == 2).all()


def test_zeros_of_the_pool_are_zero_also_in_used_memory(driver):
    saved = driver.save_pool_cursor()
    x = driver.from_host(np.ones((7, 31), np.float32))
    driver.residual_add(x, x)
    driver.restore_pool_cursor(saved)
    saved = driver.save_pool_cursor()
    assert not driver.to_host(driver.alloc_zeros((7, 31))).any()
    driver.restore_pool_cursor(saved)


def test_scopes_nest(any_driver):
    outer = any_driver.save_pool_cursor()
    x = any_driver.alloc_zeros((2, 3))
    inner = any_driver.save_pool_cursor()
    any_driver.residual_add(x, x)
    any_driver.restore_pool_cursor(inner)
    any_driver.restore_pool_cursor(outer)
    assert x.shape == (2, 3)


def test_the_largest_request_replaces_smaller_memory_and_the_smallest_fit_is_taken():
    driver = NumpyDriver()

    def scope(*rows):
        saved = driver.save_pool_cursor()
        for count in rows:
            driver.alloc_zeros((count,))
        driver.restore_pool_cursor(saved)
        return driver.pool_memory.fresh_bytes // 4

    assert scope(100, 10) == 110
    assert scope(5, 100) == 110  # 5 takes the 10, so 100 still finds its own
    assert scope(200, 10) == 310  # 200 replaces the 100
    assert scope(200, 10) == 310


@pytest.mark.parametrize("wrong", [1, -1, 99])
def test_a_cursor_that_is_not_the_last_saved_one_is_refused(any_driver, wrong):
    with pytest.raises(DriverError, match="restore_pool_cursor: cursor 0, but none is saved"):
        any_driver.restore_pool_cursor(0)
    saved = any_driver.save_pool_cursor()
    with pytest.raises(DriverError, match="restore_pool_cursor: cursor .*the last saved is"):
        any_driver.restore_pool_cursor(saved + wrong)
    any_driver.restore_pool_cursor(saved)


def test_the_end_of_a_batch_forgets_open_cursors_and_gives_the_memory_back(any_driver):
    any_driver.begin_batch()
    saved = any_driver.save_pool_cursor()
    any_driver.alloc_zeros((1000,))
    any_driver.end_batch()
    with pytest.raises(DriverError, match="none is saved"):
        any_driver.restore_pool_cursor(saved)


def test_flush_and_segment_leave_results_and_cursors_alone(driver, rng):
    x = driver.from_host(rng.standard_normal((3, 7)).astype(np.float32))
    driver.begin_batch()
    saved = driver.save_pool_cursor()
    y = driver.residual_add(x, x)
    driver.flush_batch()
    driver.segment_encoder()
    driver.restore_pool_cursor(saved)
    assert np.array_equal(driver.to_host(y), 2 * driver.to_host(x))
    driver.end_batch()
