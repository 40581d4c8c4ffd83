"""Each instruction set of this machine passes the contract's tests of the forward operations.

They are the tests that every driver passes, through the same fixtures, in float32; nothing in them
may have been composed from NumPy's primitives.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from drivers import open_driver
from tests.ops.test_attention_options import (  # noqa: F401
    test_a_poisoned_sequence_does_not_reach_its_batch_mates,
    test_attention_with_options_matches_oracle,
    test_num_12_a_changed_token_moves_the_outputs_within_its_window_alone,
)
from tests.ops.test_forward_ops import (  # noqa: F401
    test_add_norm_matches_oracle_and_composition,
    test_add_norm_of_each_kind_in_each_order_matches_oracle,
    test_attention_matches_oracle_and_composition,
    test_attention_takes_the_scale_it_is_given,
    test_embed_matches_oracle_and_composition,
    test_embed_takes_an_rms_norm,
    test_gated_linear_matches_oracle_and_composition,
    test_linear_matches_oracle_and_composition,
)
from tests.ops.test_pooling import (  # noqa: F401
    test_pool_cuts_then_normalizes,
    test_pool_leaves_the_skipped_tokens_out,
    test_pool_matches_oracle,
)
from tests.tiles import TILE_SETS

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = [name for name in rayvec_native.instruction_sets() if name not in TILE_SETS]

pytestmark = pytest.mark.usefixtures("all_is_native")


@pytest.fixture(params=SETS)
def driver(request):
    return open_driver(f"cpu:{request.param}")


@pytest.fixture(params=[np.float32], ids=["f32"])
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture
def all_is_native(driver):
    yield
    assert not driver.composed_calls
