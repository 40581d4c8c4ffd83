"""The 61 methods of the compute trait: all there, on every driver, and said so in the docs."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from drivers import DtypeError, Encoding
from drivers.primitives import Primitives
from drivers.trait import TRAIT, TraitNames, trait_markdown
from tests import oracle
from tests.ops.contract import integers

NAMES = (Path(__file__).parent / "trait_names.txt").read_text(encoding="utf-8").split()
ALIASES = [row for row in TRAIT if row.name != row.method]
OF_TENSORS = [row for row in ALIASES if row.name != "alloc_zeros_f16"]
F16, F32 = np.float16, np.float32


def zeros(driver, *shape, dtype=F32):
    return driver.from_host(np.zeros(shape, dtype))


def calls(driver, half):
    """One right call of every method, by name: positional and keyword arguments.

    half: the storage type of what the method takes where it may choose; aliases take float16.
    """

    def z(*shape, dtype=half):
        return zeros(driver, *shape, dtype=dtype)

    rows = [Encoding(np.ones(n, np.int32)) for n in (2, 3)]
    lengths = {"seq_lengths": (2, 3)}
    row = z(4)
    heads, mask, scores = z(4, 3, 2), z(2, 3, dtype=F32), z(4, 3, 3)
    table = z(3, 1, dtype=F32)
    softmax = ((scores, mask), {"num_heads": 2, "scale": 1.0})
    windowed = ((scores, mask), {"num_heads": 2, "scale": 1.0, "window": 2})
    pad = ((z(5, 4),), {**lengths, "max_seq": 3})
    product, batched = ((z(2, 3), z(3, 4)), {}), ((z(2, 3, 4), z(2, 4, 5)), {})
    norm, gate = ((z(3, 4), row, row), {"eps": 1e-5}), ((z(3, 4), z(3, 4)), {})
    residual_norm = ((z(3, 4), z(3, 4), row, row), {"eps": 1e-5})
    return {
        "alloc_zeros": (((2, 3),), {}),
        "alloc_zeros_f16": (((2, 3),), {}),
        "clone_tensor": ((row,), {}),
        "f32_to_f16": ((z(3, dtype=F32),), {}),
        "f16_to_f32": ((z(3, dtype=F16),), {}),
        "to_host": ((row,), {}),
        "new_for_clone": ((), {}),
        "begin_batch": ((), {}),
        "flush_batch": ((), {}),
        "segment_encoder": ((), {}),
        "save_pool_cursor": ((), {}),
        "restore_pool_cursor": ((0,), {}),
        "end_batch": ((), {}),
        "prepare_batch": ((rows, 4), {}),
        "prepare_batch_unpadded": ((rows,), {}),
        "pad_to_batch": pad,
        "unpad_from_batch": ((z(2, 3, 4),), lengths),
        "embedding_lookup": ((integers(driver, [1, 0]), z(2, 4)), {}),
        "add_embeddings": ((z(2, 4), z(2, 4), integers(driver, [1, 0])), {}),
        "gemm": product,
        "gemm_mixed": product,
        "gemm_batched": batched,
        "add_bias": ((z(3, 4), row), {}),
        "residual_add": gate,
        "fused_bias_residual": ((z(3, 4), row, z(3, 4)), {}),
        "gelu": ((row,), {}),
        "fused_bias_gelu": ((z(3, 4), row), {}),
        "split_gate_value": ((z(3, 4),), {}),
        "swiglu": gate,
        "geglu": gate,
        "fused_split_geglu": ((z(3, 4),), {}),
        "layer_norm": norm,
        "fused_residual_layernorm": residual_norm,
        "l2_normalize": ((z(3, 4),), {}),
        "build_attn_mask": ((integers(driver, [[1, 0]]),), {}),
        "qkv_split": ((z(2, 3, 12),), {"num_heads": 2}),
        "fused_pad_qkv_split": ((z(5, 12),), {**lengths, "max_seq": 3, "num_heads": 2}),
        "fused_scale_mask_softmax": softmax,
        "fused_scale_mask_softmax_windowed": windowed,
        "attn_reshape": ((heads,), {"num_heads": 2}),
        "fused_reshape_unpad": ((heads,), {**lengths, "num_heads": 2}),
        "banded_qk": ((heads, heads), {"window": 2}),
        "banded_softmax": ((scores,), {"scale": 1.0}),
        "banded_sv": ((scores, heads), {}),
        "apply_rope": ((heads, table, table), {}),
        "cls_pool": ((z(2, 3, 4),), {}),
        "mean_pool": ((z(2, 3, 4), mask), {}),
    }


def call_of(driver, row, half):
    table = calls(driver, half)
    return table.get(row.name) or table[row.method]


def test_the_table_lists_the_traits_names_and_no_others():
    assert len(NAMES) == len(set(NAMES)) == 61
    assert sorted(row.name for row in TRAIT) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_method_with_a_body_and_a_docstring(any_driver, name):
    """A Protocol's own body is `...`: a driver that inherits it would give None in silence."""
    owner = next(c for c in type(any_driver).__mro__ if name in vars(c))
    assert owner.__module__.partition(".")[2].split(".")[0] not in ("primitives", "protocol")
    assert callable(getattr(any_driver, name))
    documented = getattr(TraitNames, name)
    assert inspect.getdoc(documented), name


@pytest.mark.parametrize("name", [n for n in vars(TraitNames) if not n.startswith("_")])
def test_every_alias_is_in_the_table(name):
    assert name in NAMES


def test_every_name_can_be_called_on_every_driver(any_driver):
    """In an order that opens a batch before it closes it."""
    order = list(calls(any_driver, F16))
    for row in sorted(TRAIT, key=lambda row: order.index(row.method) if row.method in order else 0):
        if row.name == "new_for_clone" and any_driver.name.startswith("cuda"):
            continue  # a device has one driver: tests/cuda_fibers/test_cuda_driver.py
        inputs, options = call_of(any_driver, row, F16)
        getattr(any_driver, row.name)(*inputs, **options)


@pytest.mark.parametrize("row", ALIASES, ids=lambda row: row.name)
def test_an_alias_gives_what_its_method_gives(any_driver, row):
    inputs, options = call_of(any_driver, row, F16)
    got = getattr(any_driver, row.name)(*inputs, **options)
    wanted = F32 if row.name in ("gemm_mixed", "f16_to_f32") else F16
    for tensor in got if isinstance(got, tuple) else (got,):
        assert tensor.dtype == wanted


@pytest.mark.parametrize("row", OF_TENSORS, ids=lambda row: row.name)
def test_an_alias_refuses_another_dtype_by_its_own_name(any_driver, row):
    inputs, options = call_of(any_driver, row, F32)
    if row.name in ("f32_to_f16", "f16_to_f32"):
        wrong = F16 if row.name == "f32_to_f16" else F32
        inputs = (zeros(any_driver, 3, dtype=wrong),)
    with pytest.raises(DtypeError, match=f"^{row.name}: .* has dtype float(16|32), wanted float"):
        getattr(any_driver, row.name)(*inputs, **options)


@pytest.mark.parametrize("row", OF_TENSORS, ids=lambda row: row.name)
def test_an_alias_refuses_an_out_of_another_dtype(any_driver, row):
    inputs, options = call_of(any_driver, row, F16)
    got = getattr(any_driver, row.name)(*inputs, **options)

    def other(tensor):
        wrong = F32 if tensor.dtype == F16 else F16
        return zeros(any_driver, *tensor.shape, dtype=wrong)

    out = tuple(map(other, got)) if isinstance(got, tuple) else other(got)
    with pytest.raises(DtypeError, match=f"^{row.name}: out has dtype"):
        getattr(any_driver, row.name)(*inputs, **options, out=out)


@pytest.mark.parametrize("name", ["gemm_f16", "gemm_mixed"])
def test_the_half_products_are_the_product(driver, rng, name):
    a, b = (rng.standard_normal(s).astype(F16) for s in [(7, 31), (33, 31)])
    want = oracle.gemm(a, b, transpose_b=True)
    got = getattr(driver, name)(driver.from_host(a), driver.from_host(b), transpose_b=True)
    stored = F32 if name == "gemm_mixed" else F16
    scale = oracle.gemm_scale(a, b, transpose_b=True)
    budget = oracle.error_budget(want, stored, terms=31, scale=scale)
    assert oracle.max_error(driver, got, want) <= budget


def test_rope_encode_f16_is_apply_rope(driver, rng):
    x = rng.standard_normal((6, 7, 8)).astype(F16)
    cos, sin = (rng.standard_normal((7, 4)).astype(F32) for _ in range(2))
    got, want = (
        getattr(driver, op)(*map(driver.from_host, (x.copy(), cos, sin)))
        for op in ("rope_encode_f16", "apply_rope")
    )
    assert np.array_equal(driver.to_host(got), driver.to_host(want))


def test_docs_driver_md_is_made_from_the_table():
    page = Path(__file__).parents[2] / "docs" / "DRIVER.md"
    assert page.read_text(encoding="utf-8") == trait_markdown()


def test_every_primitive_has_a_docstring():
    missing = [
        name
        for name in dir(Primitives)
        if not name.startswith("_") and not inspect.getdoc(getattr(Primitives, name))
    ]
    assert missing == []
