"""Size 0: no rows, no sequences, no tokens. Nothing to do is done without an error."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.contract import integers

F32 = np.float32

NO_ROWS = {
    "cast": ([(0, 7)], {"dtype": F32}, (0, 7)),
    "pad_to_batch": ([(0, 7)], {"seq_lengths": [], "max_seq": 3}, (0, 3, 7)),
    "unpad_from_batch": ([(0, 3, 7)], {"seq_lengths": []}, (0, 7)),
    "gemm": ([(0, 7), (7, 5)], {}, (0, 5)),
    "gemm_batched": ([(0, 3, 7), (0, 7, 5)], {}, (0, 3, 5)),
    "add_bias": ([(0, 7), (7,)], {}, (0, 7)),
    "residual_add": ([(0, 7), (0, 7)], {}, (0, 7)),
    "fused_bias_residual": ([(0, 7), (7,), (0, 7)], {}, (0, 7)),
    "activate": ([(0, 7)], {"act": "gelu"}, (0, 7)),
    "gelu": ([(0, 7)], {}, (0, 7)),
    "fused_bias_gelu": ([(0, 7), (7,)], {}, (0, 7)),
    "geglu": ([(0, 7), (0, 7)], {}, (0, 7)),
    "swiglu": ([(0,), (0,)], {}, (0,)),
    "fused_split_geglu": ([(0, 8)], {}, (0, 4)),
    "fused_split_gate": ([(0, 8)], {"act": "silu"}, (0, 4)),
    "layer_norm": ([(0, 7), (7,), (7,)], {"eps": 1e-5}, (0, 7)),
    "fused_residual_layernorm": ([(0, 7), (0, 7), (7,), (7,)], {"eps": 1e-5}, (0, 7)),
    "rms_norm": ([(0, 7), (7,)], {"eps": 1e-5}, (0, 7)),
    "fused_residual_rmsnorm": ([(0, 7), (0, 7), (7,)], {"eps": 1e-5}, (0, 7)),
    "l2_normalize": ([(0, 7)], {}, (0, 7)),
    "fused_scale_mask_softmax": ([(0, 3, 3), (0, 3)], {"num_heads": 2, "scale": 1.0}, (0, 3, 3)),
    "fused_scale_mask_softmax_windowed": (
        [(2, 0, 0), (1, 0)],
        {"num_heads": 2, "scale": 1.0, "window": 4},
        (2, 0, 0),
    ),
    "banded_qk": ([(0, 3, 7), (0, 3, 7)], {"window": 5}, (0, 3, 5)),
    "banded_softmax": ([(0, 3, 5)], {"scale": 1.0, "seq_lengths": []}, (0, 3, 5)),
    "banded_sv": ([(2, 0, 5), (2, 0, 7)], {}, (2, 0, 7)),
    "apply_rope": ([(0, 3, 8), (3, 4), (3, 4)], {}, (0, 3, 8)),
    "attn_reshape": ([(0, 3, 7)], {"num_heads": 2}, (0, 3, 14)),
    "fused_reshape_unpad": ([(0, 3, 7)], {"seq_lengths": [], "num_heads": 2}, (0, 14)),
    "cls_pool": ([(0, 3, 7)], {}, (0, 7)),
    "mean_pool": ([(0, 3, 7), (0, 3)], {}, (0, 7)),
    "max_pool": ([(0, 3, 7), (0, 3)], {}, (0, 7)),
}


@pytest.mark.parametrize("op", NO_ROWS)
def test_no_rows_give_no_rows(any_driver, op):
    inputs, options, shape = NO_ROWS[op]
    got = getattr(any_driver, op)(*map(any_driver.alloc_zeros, inputs), **options)
    assert got.shape == shape


def test_no_ids_add_nothing(any_driver):
    table, hidden = any_driver.alloc_zeros((5, 7)), any_driver.alloc_zeros((0, 7))
    ids = integers(any_driver, [])
    assert any_driver.embedding_lookup(ids, table).shape == (0, 7)
    assert any_driver.add_embeddings(hidden, table, ids).shape == (0, 7)


def test_results_of_several_parts_are_empty_together(any_driver):
    first, second = any_driver.split_gate_value(any_driver.alloc_zeros((0, 8)))
    assert first.shape == second.shape == (0, 4)
    parts = any_driver.qkv_split(any_driver.alloc_zeros((0, 3, 12)), num_heads=2)
    assert [part.shape for part in parts] == [(0, 3, 2)] * 3
    flat = any_driver.alloc_zeros((0, 12))
    parts = any_driver.fused_pad_qkv_split(flat, seq_lengths=[0, 0], max_seq=3, num_heads=2)
    assert [part.shape for part in parts] == [(4, 3, 2)] * 3
    assert not any(any_driver.to_host(part).any() for part in parts)


@pytest.mark.parametrize("op", ["mean_pool", "max_pool"])
def test_the_pool_over_no_tokens_is_zero(driver, op):
    got = getattr(driver, op)(driver.alloc_zeros((2, 0, 7)), driver.alloc_zeros((2, 0)))
    assert driver.to_host(got).tolist() == [[0.0] * 7] * 2


def test_a_product_over_no_terms_is_zero(driver):
    got = driver.gemm(driver.alloc_zeros((2, 0)), driver.alloc_zeros((0, 3)))
    assert driver.to_host(got).tolist() == [[0.0] * 3] * 2
