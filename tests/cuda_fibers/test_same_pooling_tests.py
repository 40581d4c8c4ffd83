"""The pooling kernels pass the tests of pooling that every driver passes."""

from __future__ import annotations

from tests.ops.test_pooling import *  # noqa: F403
from tests.ops.test_size_zero import test_the_pool_over_no_tokens_is_zero  # noqa: F401
