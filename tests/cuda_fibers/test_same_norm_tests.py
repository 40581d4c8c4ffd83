"""The norm kernels pass the tests of norms that every driver passes, through the same fixtures."""

from __future__ import annotations

import pytest

from tests.cuda_fibers.driver import FiberDriver
from tests.ops.test_forward_ops import (  # noqa: F401
    test_add_norm_matches_oracle_and_composition,
    test_add_norm_of_each_kind_in_each_order_matches_oracle,
    test_the_sandwich_is_rounded_once,
)
from tests.ops.test_norms import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("something_was_launched")


@pytest.fixture
def driver():
    """No kernel here has a barrier, so one order will do."""
    return FiberDriver("shuffled")
