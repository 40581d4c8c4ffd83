"""The CUDA driver's attention refuses what every driver refuses, before any launch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from drivers.types import QkNorm, Rope
from tests.cuda_fibers.cuda_driver import fiber_driver
from tests.cuda_fibers.device import FiberDevice
from tests.ops.test_attention_options import (  # noqa: F401
    batch_of,
    test_options_that_do_not_fit_are_refused,
)
from tests.ops.test_forward_ops import (  # noqa: F401
    test_attention_refuses_foreign_tokens_padded_batches_and_uneven_heads,
)


@pytest.fixture
def any_driver(monkeypatch):
    """The driver, which must not have launched a kernel of attention when the test is over."""
    driver, launched, launch = fiber_driver("shuffled"), [], FiberDevice.launch

    def recorded(device, theme, *arguments):
        launched.append(theme)
        launch(device, theme, *arguments)

    monkeypatch.setattr(FiberDevice, "launch", recorded)
    yield driver
    assert not {"flash_attention", "varlen_attention", "heads"} & set(launched)


def test_dtypes_that_do_not_fit_are_refused(any_driver):
    def array(shape, dtype=np.float32):
        return any_driver.from_host(np.zeros(shape, dtype))

    batch, heads = batch_of(any_driver, [2, 3]), {"num_heads": 4, "kv_heads": 2}
    with pytest.raises(DtypeError, match="attention: qkv has dtype float64, wanted one of float32"):
        any_driver.attention(array((5, 32), np.float64), batch, **heads)
    qkv = array((5, 32), np.float16)
    with pytest.raises(DtypeError, match="position_bias has dtype float16, wanted float32"):
        any_driver.attention(qkv, batch, **heads, position_bias=array((4, 5), np.float16))
    norm = QkNorm(array(4, np.float16), array(4, ml_dtypes.bfloat16), eps=1e-6)
    with pytest.raises(DtypeError, match="rms_norm: weight has dtype bfloat16, wanted float16"):
        any_driver.attention(qkv, batch, **heads, qk_norm=norm)
    for name, types in (("cos", (np.float16, np.float32)), ("sin", (np.float32, np.float16))):
        rope = Rope(*(array((3, 2), dtype) for dtype in types))
        with pytest.raises(DtypeError, match=f"apply_rope: {name} has dtype float16"):
            any_driver.attention(qkv, batch, **heads, rope=rope)


def test_heads_and_tables_that_no_kernel_takes_are_refused(any_driver):
    batch = batch_of(any_driver, [2, 3])
    wide = any_driver.from_host(np.zeros((5, 3 * 257), np.float16))
    norm = QkNorm(*any_driver.from_host(np.ones((2, 257), np.float16)), eps=1e-6)
    with pytest.raises(ShapeError, match="head_dim is 257, wanted 1 to 256"):
        any_driver.attention(wide, batch, num_heads=1, qk_norm=norm)
    qkv = any_driver.from_host(np.zeros((5, 24), np.float16))
    rope = Rope(*any_driver.from_host(np.zeros((2, 4, 3, 2), np.float32)))
    with pytest.raises(ShapeError, match=r"cos has shape \(4, 3, 2\), wanted \(2, \*, \*\)"):
        any_driver.attention(qkv, batch, num_heads=2, rope=rope)
