"""The banded and rotary kernels pass the tests that every driver passes."""

from __future__ import annotations

import pytest

from tests.ops.test_banded import (  # noqa: F401
    test_an_even_band_omits_the_right_edge,
    test_an_odd_window_is_the_even_one_below_it,
    test_band_w_plus_1_is_window_w_on_every_position_that_exists,
    test_banded_qk_matches_oracle,
    test_banded_softmax_matches_oracle,
    test_banded_sv_matches_oracle,
    test_minus_infinity_is_masked_whatever_the_scale,
    test_scores_of_the_whole_sequence_are_read_with_their_offsets,
    test_weights_and_values_outside_the_sequence_leave_no_trace,
)
from tests.ops.test_rope import (  # noqa: F401
    test_apply_rope_matches_oracle,
    test_each_sequence_may_have_its_own_table,
    test_position_zero_and_dimensions_behind_r_pass_unchanged,
    test_rotation_keeps_the_length_of_every_pair,
    test_scores_depend_on_the_distance_alone,
    test_the_pairs_are_half_a_rotation_apart_and_turn_towards_the_second,
)

pytestmark = pytest.mark.usefixtures("kernels_ran")
