"""The driver on fibers refuses what every driver refuses, and does nothing for size 0."""

from __future__ import annotations

import pytest

from drivers import NumpyDriver, ShapeError
from tests.cuda_fibers.driver import FiberDriver
from tests.ops.test_banded import test_what_does_not_fit_is_refused  # noqa: F401
from tests.ops.test_causal_steps import (  # noqa: F401
    test_scores_that_are_not_square_matrices_of_heads_are_refused,
    test_the_primitives_refuse_what_does_not_fit,
)
from tests.ops.test_refusals import (  # noqa: F401
    WRONG_IDS,
    WRONG_SHAPES,
    call,
    test_a_mask_is_float32_and_nothing_else,
    test_a_refused_call_writes_nothing,
    test_a_wrong_dtype_is_refused_by_name,
    test_a_wrong_shape_is_refused_by_name,
    test_an_out_of_another_shape_is_refused,
    test_an_out_that_is_no_float_storage_is_refused,
)
from tests.ops.test_rope import (  # noqa: F401
    test_tables_are_float32_and_nothing_else,
    test_tables_that_do_not_fit_are_refused,
)
from tests.ops.test_size_zero import (  # noqa: F401
    test_no_rows_give_no_rows,
)
from tests.ops.test_windows import (  # noqa: F401
    test_a_negative_window_is_refused,
    test_a_position_bias_is_float32_and_nothing_else,
    test_windows_and_biases_that_do_not_fit_are_refused,
)


@pytest.fixture
def driver():
    """One order: next to nothing is launched here."""
    return FiberDriver("shuffled")


@pytest.mark.parametrize(("op", "inputs", "options", "message"), WRONG_SHAPES, ids=WRONG_IDS)
def test_it_refuses_in_the_words_of_numpy(driver, op, inputs, options, message):
    said = []
    for one in (driver, NumpyDriver()):
        with pytest.raises(ShapeError, match=message) as caught:
            call(one, op, *inputs, **options)
        said.append(str(caught.value))
    assert said[0] == said[1]
