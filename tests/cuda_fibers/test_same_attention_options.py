"""The kernels pass the tests of attention's options that every driver passes."""

from __future__ import annotations

import numpy as np
import pytest

from tests import oracle
from tests.ops.test_attention_options import (  # noqa: F401
    LENGTHS,
    OPTIONS,
    Case,
    test_a_poisoned_sequence_does_not_reach_its_batch_mates,
    test_a_row_attends_as_it_does_alone,
    test_any_combination_of_options_matches_oracle,
    test_attention_with_options_matches_oracle,
    test_causal_attention_does_not_see_later_tokens,
    test_num_12_a_changed_token_moves_the_outputs_within_its_window_alone,
    test_num_15_a_short_text_beside_a_long_one_stays_finite_and_itself,
    test_num_16_a_head_may_be_wider_than_hidden_over_heads,
    test_the_norm_of_q_and_k_comes_before_the_rotation,
)

pytestmark = pytest.mark.usefixtures("the_kernel_ran")


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["rope", "partial rope", "rope by sequence", "qk norm", "all"])
def test_normed_and_rotated_heads_go_to_the_tensor_cores(driver, rng, name, dim):
    case = Case(rng, np.dtype(np.float16), LENGTHS, dim, **OPTIONS[name])
    want = case.want()
    assert oracle.max_error(driver, case.run(driver), want) <= case.budget(want)
    assert driver.launches_total == 2
