"""Places in the block that a batch's tensors lie in."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.cuda.arena import ALIGNMENT_BYTES, Arena

STEPS = st.lists(st.tuples(st.integers(0, 5000), st.booleans(), st.integers(0, 99)), max_size=60)
MANY = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def test_places_follow_each_other_on_the_boundary_and_come_back_in_any_order():
    arena = Arena(4096)
    assert [arena.take(size) for size in (1, 256, 257, 0)] == [0, 256, 512, 1024]
    assert arena.peak_bytes == arena.live_bytes == 1280
    for offset in (256, 1024, 0, 512):
        arena.give(offset)
    assert arena.live_bytes == 0
    assert arena.take(4096) == 0


def test_the_lowest_gap_that_fits_is_taken_and_gaps_join():
    arena = Arena(4096)
    places = [arena.take(256) for _ in range(6)]
    arena.give(places[1])
    arena.give(places[3])
    assert arena.take(512) == 6 * 256  # neither gap holds it
    arena.give(places[2])
    assert arena.take(768) == places[1]


def test_the_peak_is_the_block_that_would_have_held_it_all_whatever_the_capacity():
    arena = Arena(256)
    first = arena.take(256)
    second = arena.take(1000)
    assert second >= arena.capacity
    arena.give(first)
    arena.give(second)
    arena.take(100)
    assert arena.peak_bytes == 256 + 1024


@MANY
@given(steps=STEPS)
def test_no_two_places_overlap_and_the_same_requests_get_the_same_places(steps):
    def run():
        arena, out, offsets = Arena(0), {}, []
        used = np.zeros(61 * 5120, bool)
        for size, give, which in steps:
            if give and out:
                offset = sorted(out)[which % len(out)]
                used[offset : offset + out.pop(offset)] = False
                arena.give(offset)
                continue
            offset = arena.take(size)
            size = max(size, 1)
            assert offset % ALIGNMENT_BYTES == 0
            assert not used[offset : offset + size].any()
            used[offset : offset + size] = True
            out[offset] = size
            offsets.append(offset)
        assert arena.peak_bytes >= arena.live_bytes >= sum(out.values())
        for offset in out:
            arena.give(offset)
        assert arena.live_bytes == 0
        assert arena.take(1) == 0
        return offsets, arena.peak_bytes

    assert run() == run()
