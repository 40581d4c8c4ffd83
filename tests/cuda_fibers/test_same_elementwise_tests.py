"""The kernels of sums, activations and gates pass the tests that every driver passes."""

from __future__ import annotations

import pytest

from tests.ops.test_activations import (  # noqa: F401
    test_a_value_does_not_depend_on_its_place,
    test_accuracy_on_a_dense_grid,
    test_activate_matches_oracle,
    test_every_way_to_gelu_is_the_erf_form,
    test_fused_bias_gelu_matches_oracle,
    test_gelu_keeps_its_relative_accuracy_in_the_negative_tail,
    test_gelu_matches_oracle,
    test_the_ends_of_float16_give_the_limits,
    test_the_ends_of_float32_give_the_limits,
    test_the_erf_and_tanh_forms_are_told_apart,
    test_zero_stays_zero_and_a_nan_stays_where_it_is,
)
from tests.ops.test_gates import (  # noqa: F401
    test_a_gate_is_rounded_once,
    test_a_gate_takes_the_dtype_of_its_value,
    test_fused_split_gate_activates_the_first_half,
    test_fused_split_geglu_is_the_split_and_the_gate_to_the_bit,
    test_geglu_activates_the_value,
    test_split_gate_value_gives_the_first_half_first,
    test_swiglu_activates_the_gate,
)
from tests.ops.test_products import (  # noqa: F401
    test_add_bias_matches_oracle,
    test_fused_bias_residual_equals_its_two_steps,
    test_fused_bias_residual_matches_oracle,
    test_fused_bias_residual_rounds_float16_once,
    test_residual_add_matches_oracle,
    test_sums_of_float16_into_float32_are_exact,
)

pytestmark = pytest.mark.usefixtures("kernels_ran")
