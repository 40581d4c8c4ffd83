"""The look-up kernels pass the tests of look-ups that every driver passes."""

from __future__ import annotations

import pytest

from tests.cuda_fibers.driver import FiberDriver
from tests.ops.test_forward_ops import (  # noqa: F401
    test_an_unknown_norm_an_unknown_order_and_an_rms_bias_are_refused,
    test_embed_matches_oracle_and_composition,
    test_embed_refuses_no_tables_and_tables_of_two_widths,
    test_embed_takes_an_rms_norm,
)
from tests.ops.test_lookups import *  # noqa: F403
from tests.ops.test_refusals import (  # noqa: F401
    test_a_look_up_rounds_into_the_dtype_of_out_as_every_operation_does,
)
from tests.ops.test_size_zero import test_no_ids_add_nothing  # noqa: F401


@pytest.fixture
def driver():
    """The kernel with a barrier has its orders in test_lookups.py; for the others one will do."""
    return FiberDriver("shuffled")
