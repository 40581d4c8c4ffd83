"""Products and linear layers of the CUDA driver pass the tests that every driver passes."""

from __future__ import annotations

import pytest

from tests.ops.test_activations import test_every_way_to_gelu_is_the_erf_form  # noqa: F401
from tests.ops.test_forward_ops import (  # noqa: F401
    test_gated_linear_matches_oracle_and_composition,
    test_gated_linear_refuses_an_odd_width_and_an_unknown_activation,
    test_linear_adds_the_residual_after_the_activation,
    test_linear_matches_oracle_and_composition,
    test_linear_names_an_unknown_activation,
    test_linear_refuses_what_does_not_fit,
)
from tests.ops.test_products import (  # noqa: F401
    test_a_group_of_b_serves_consecutive_groups_of_a,
    test_gemm_batched_matches_oracle,
    test_gemm_keeps_poisoned_rows_to_themselves,
    test_gemm_matches_oracle,
    test_gemm_of_float16_into_float32_is_not_rounded_to_float16,
    test_gemm_sums_in_float32_where_float16_would_stop_at_2048,
    test_gemm_takes_the_dtype_of_its_left_side,
)
from tests.ops.test_size_zero import test_a_product_over_no_terms_is_zero  # noqa: F401


@pytest.fixture(autouse=True)
def the_library_took_every_call(driver):
    """Nothing may have been refused and computed in another way."""
    yield
    assert driver.device.fake_cublaslt.refusals == []
