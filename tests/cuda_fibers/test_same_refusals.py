"""The driver of kernels refuses what every driver refuses, and makes nothing of nothing."""

from __future__ import annotations

from tests.ops.test_activations import (  # noqa: F401
    test_an_unknown_activation_is_named_beside_the_known_ones,
)
from tests.ops.test_gates import (  # noqa: F401
    test_gates_refuse_an_odd_width_another_shape_and_an_unknown_activation,
)
from tests.ops.test_heads import (  # noqa: F401
    test_fused_forms_refuse_what_their_steps_refuse,
    test_heads_that_do_not_fit_the_width_are_refused,
)
from tests.ops.test_memory_and_batching import (  # noqa: F401
    test_a_cast_knows_float32_and_float16_alone,
    test_a_cast_refuses_other_tensors_by_their_dtype,
    test_every_id_of_a_batch_is_int32_and_the_float_mask_float32,
    test_host_round_trip_keeps_values_and_dtype,
    test_input_ids_that_are_not_int32_are_refused_not_wrapped,
    test_padded_and_flat_batches_hold_the_same_tokens,
    test_prepare_batch_names_the_row_it_refuses,
    test_prepare_batch_pads_ids_types_and_positions_with_zero,
    test_prepare_batch_unpadded_lays_tokens_end_to_end,
    test_prepare_batch_unpadded_refuses_empty_batches_and_rows,
)
from tests.ops.test_refusals import (  # noqa: F401
    test_a_refused_call_writes_nothing,
    test_a_wrong_dtype_is_refused_by_name,
    test_a_wrong_shape_is_refused_by_name,
    test_an_out_of_another_shape_is_refused,
    test_an_out_that_is_no_float_storage_is_refused,
    test_what_is_always_float32_refuses_a_float16_out,
)
from tests.ops.test_size_zero import (  # noqa: F401
    test_no_rows_give_no_rows,
    test_results_of_several_parts_are_empty_together,
)
