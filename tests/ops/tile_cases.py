"""What tests of the bfloat16 mode share: its driver, bf16 inputs, and what rounding may cost."""

from __future__ import annotations

import numpy as np

from drivers import Encoding
from drivers.dtypes import BFLOAT16
from tests import oracle

ROUNDING = 2.0**-8
"""The relative error of one rounding to bf16, at most."""

ACTIVATION_ERROR = 6e-5
"""What the polynomials of gelu may err by; the other activations are float32's."""

WEIGHT_ERROR = 7.5e-5
"""The relative error of a softmax weight before it is rounded."""


def bf16(rng, *shape, scale=1.0):
    """Random values of dtype bfloat16."""
    return (rng.standard_normal(shape) * scale).astype(BFLOAT16)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def rounded(x):
    """The values in bf16, in float64."""
    return np.asarray(x).astype(np.float32).astype(BFLOAT16).astype(np.float64)


def pack(driver, weight, role="linear"):
    return driver.pack(weight.astype(np.float32), role, BFLOAT16)


def batch_of(driver, lengths):
    return driver.prepare_batch_unpadded([Encoding(np.ones(n, np.int32)) for n in lengths])


def sums_noise(x, weight):
    """What float32 sums of x @ weight.T may err by."""
    terms = x.shape[1]
    scale = oracle.gemm_scale(x, weight, transpose_b=True) + 1
    return oracle.error_budget(np.zeros(1), np.float32, terms=terms, scale=4 * scale)


def is_within(got, want, budget):
    """Whether each value errs by no more than its own budget."""
    assert got.shape == want.shape
    return bool((np.abs(oracle.wide(got) - want) <= budget).all())
