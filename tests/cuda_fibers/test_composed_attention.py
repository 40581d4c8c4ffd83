"""Attention composed of its steps' kernels passes the tests of attention that every driver passes.

The driver's own attention, which those tests take elsewhere, is one kernel.
"""

from __future__ import annotations

import pytest

from drivers.cuda.driver import CudaDriver
from drivers.forward_ops import ForwardOps
from tests.cuda_fibers.device import FiberDevice
from tests.ops.test_attention_options import (  # noqa: F401
    test_a_poisoned_sequence_does_not_reach_its_batch_mates,
    test_a_row_attends_as_it_does_alone,
    test_attention_with_options_matches_oracle,
    test_causal_attention_does_not_see_later_tokens,
    test_num_12_a_changed_token_moves_the_outputs_within_its_window_alone,
    test_num_15_a_short_text_beside_a_long_one_stays_finite_and_itself,
    test_num_16_a_head_may_be_wider_than_hidden_over_heads,
    test_the_norm_of_q_and_k_comes_before_the_rotation,
)
from tests.ops.test_forward_ops import (  # noqa: F401
    test_a_single_token_attends_to_itself_alone,
    test_attention_survives_products_that_float16_cannot_hold,
)


class ComposedDriver(CudaDriver):
    """The steps are the kernels, joined as every new driver joins them."""

    attention = ForwardOps.attention


@pytest.fixture
def driver():
    """One order: the tests of the steps have the others."""
    return ComposedDriver(FiberDevice("warp_greedy"))
