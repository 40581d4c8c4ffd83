"""The kernels of memory, batches and heads pass the tests that every driver passes."""

from __future__ import annotations

import pytest

from tests.ops.test_attention_steps import (  # noqa: F401
    test_attn_reshape_puts_heads_side_by_side,
    test_attn_reshape_undoes_each_part_of_the_split,
    test_build_attn_mask_is_zero_for_tokens_and_mask_value_for_padding,
    test_qkv_split_puts_q_before_k_before_v_by_head,
)
from tests.ops.test_heads import (  # noqa: F401
    test_fused_pad_qkv_split_is_the_pad_and_the_split_to_the_bit,
    test_fused_reshape_unpad_is_the_reshape_and_the_unpad_to_the_bit,
    test_qkv_split_gives_key_and_value_heads_of_their_own_number,
)
from tests.ops.test_memory_and_batching import (  # noqa: F401
    test_a_cast_is_infinite_beyond_float16_and_keeps_what_is_no_number,
    test_a_cast_rounds_to_nearest_and_widens_exactly,
    test_a_clone_of_a_tensor_is_independent,
    test_a_sequence_of_length_zero_is_all_padding,
    test_alloc_zeros_is_float32_unless_told,
    test_alloc_zeros_is_zero_in_the_asked_dtype,
    test_pad_and_unpad_without_out_keep_the_dtype,
    test_pad_writes_every_position_and_unpad_brings_the_tokens_back,
    test_unpad_leaves_poison_in_the_padding_behind,
)

pytestmark = pytest.mark.usefixtures("kernels_ran")
