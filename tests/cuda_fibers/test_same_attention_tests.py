"""The kernel passes the tests of attention that every driver passes, through the same fixtures."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import Encoding
from tests.ops.test_forward_ops import (  # noqa: F401
    test_a_poisoned_sequence_does_not_reach_its_batch_mates,
    test_a_row_attends_as_it_does_alone,
    test_a_single_token_attends_to_itself_alone,
    test_attention_matches_oracle_and_composition,
    test_attention_of_any_ragged_batch_matches_oracle,
    test_attention_survives_products_that_float16_cannot_hold,
    test_attention_takes_the_scale_it_is_given,
)

pytestmark = pytest.mark.usefixtures("the_kernel_ran")


def test_a_row_has_the_same_bits_whatever_its_batch_mates(driver, rng, dtype):
    lengths, heads, dim = (33, 1, 65, 16), 2, 31
    qkv = rng.standard_normal((sum(lengths), 3 * heads * dim)).astype(dtype)

    def attend(rows, lengths):
        encodings = [Encoding(np.ones(n, np.int32)) for n in lengths]
        batch = driver.prepare_batch_unpadded(encodings)
        return driver.attention(rows, batch, num_heads=heads)

    together = np.split(attend(qkv, lengths), np.cumsum(lengths)[:-1])
    for row, alone in zip(np.split(qkv, np.cumsum(lengths)[:-1]), together):
        assert np.array_equal(attend(row, [len(row)]), alone)
