"""The softmax kernels pass the tests of the masked and causal softmax that every driver passes."""

from __future__ import annotations

import pytest

from tests.ops.test_attention_steps import (  # noqa: F401
    test_a_mask_above_minus_5000_is_only_added,
    test_a_mask_at_or_below_minus_5000_leaves_no_weight_at_all,
    test_a_row_with_every_key_masked_gives_zeros,
    test_each_sequence_uses_its_own_mask_for_all_its_heads,
    test_poison_under_the_mask_leaves_no_trace,
    test_scores_far_from_zero_neither_overflow_nor_vanish,
    test_softmax_matches_oracle,
    test_softmax_weights_sum_to_one_over_the_unmasked_keys,
)
from tests.ops.test_causal_steps import (  # noqa: F401
    test_a_matrix_of_a_group_is_a_view,
    test_poison_above_the_diagonal_leaves_no_trace,
    test_rows_sum_to_one_and_end_at_the_diagonal,
    test_scores_of_any_size_stay_finite,
    test_softmax_matches_the_oracle,
    test_the_vectorised_softmax_equals_the_plain_one_bit_by_bit,
)
from tests.ops.test_windows import (  # noqa: F401
    test_a_position_bias_is_added_by_head_and_distance,
    test_each_side_of_the_window_is_its_own,
    test_num_12_both_ends_of_the_window_are_inside,
    test_num_15_a_query_whose_window_holds_only_padding_gives_zeros,
    test_poison_outside_the_window_leaves_no_trace,
    test_the_bias_is_not_scaled,
    test_the_bias_of_a_later_key_is_on_the_right_of_the_middle,
    test_windowed_softmax_matches_oracle,
)

pytestmark = pytest.mark.usefixtures("kernels_ran")
