"""Wrong shapes and dtypes: refused by every driver alike, before any work, by name."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DtypeError, NullDriver, NumpyDriver, ShapeError
from tests.ops.contract import integers, nans

F16, F32, F64, I32, I64 = np.float16, np.float32, np.float64, np.int32, np.int64


def call(driver, op, *inputs, out=None, **options):
    """`op` on zeros of the given shapes; an input is a shape, or (shape, dtype)."""

    def tensor(spec):
        shape, kind = spec if spec and isinstance(spec[0], tuple) else (spec, F32)
        return driver.from_host(np.zeros(shape, kind))

    if out is not None:
        options["out"] = tensor(out)
    return getattr(driver, op)(*map(tensor, inputs), **options)


def ids(*shape):
    return (shape, I32)


WRONG_SHAPES = [
    ("pad_to_batch", [(4, 7)], {"seq_lengths": [2, 3], "max_seq": 3}, "4 rows, .* sum to 5"),
    ("pad_to_batch", [(5, 7)], {"seq_lengths": [2, 3], "max_seq": 2}, "lengths from 2 to 3, max_s"),
    ("pad_to_batch", [(5, 7)], {"seq_lengths": [-1, 6], "max_seq": 7}, "lengths from -1 to 6"),
    ("pad_to_batch", [(5,)], {"seq_lengths": [2, 3], "max_seq": 3}, r"\(5,\)"),
    ("pad_to_batch", [(5, 2, 7)], {"seq_lengths": [2, 3], "max_seq": 3}, r"\(5, 2, 7\)"),
    ("unpad_from_batch", [(3, 4, 7)], {"seq_lengths": [2, 3]}, r"\(3, 4, 7\), wanted \(2, \*, \*"),
    ("unpad_from_batch", [(2, 7)], {"seq_lengths": [2, 3]}, r"\(2, 7\), wanted \(2, \*, \*\)"),
    ("unpad_from_batch", [(2, 4, 7)], {"seq_lengths": [2, 5]}, "lengths from 2 to 5, max_seq is 4"),
    ("embedding_lookup", [ids(2, 3), (5, 7)], {}, r"ids has shape \(2, 3\), wanted \(\*\)"),
    ("embedding_lookup", [ids(3), (5,)], {}, r"table has shape \(5,\), wanted \(\*, \*\)"),
    ("add_embeddings", [(3, 7), (5, 8), ids(3)], {}, r"hidden has shape \(3, 7\), wanted \(3, 8\)"),
    ("add_embeddings", [(4, 7), (5, 7), ids(3)], {}, r"hidden has shape \(4, 7\), wanted \(3, 7\)"),
    ("add_embeddings", [(3, 7), (7,), ids(3)], {}, r"table has shape \(7,\), wanted \(\*, \*\)"),
    ("gemm", [(2, 3), (4, 5)], {}, r"inner sizes differ: a is \(2, 3\), b is \(4, 5\)"),
    ("gemm", [(2, 3), (3, 5)], {"transpose_b": True}, "inner sizes differ.*transpose_b=True"),
    ("gemm", [(2, 3, 4), (4, 5)], {}, r"two matrices, got shapes \(2, 3, 4\)"),
    ("gemm", [(2, 3), (3,)], {}, r"two matrices, got shapes \(2, 3\) and \(3,\)"),
    ("gemm_batched", [(2, 3, 4), (3, 4, 5)], {}, r"one G, got \(2, 3, 4\) and \(3, 4, 5\)"),
    ("gemm_batched", [(2, 3, 4), (2, 5, 6)], {}, r"inner sizes differ: a is \(3, 4\)"),
    ("gemm_batched", [(2, 3), (3, 5)], {}, r"got \(2, 3\) and \(3, 5\)"),
    ("add_bias", [(3, 7), (8,)], {}, r"bias has shape \(8,\), wanted \(7\)"),
    ("add_bias", [(3, 7), (1, 7)], {}, r"bias has shape \(1, 7\), wanted \(7\)"),
    ("add_bias", [(7,), (7,)], {}, r"at least 2 dimensions, got shape \(7,\)"),
    ("residual_add", [(3, 7), (7,)], {}, r"residual has shape \(7,\), wanted \(3, 7\)"),
    ("residual_add", [(3, 7), (1, 7)], {}, r"residual has shape \(1, 7\), wanted \(3, 7\)"),
    ("fused_bias_residual", [(3, 7), (8,), (3, 7)], {}, r"bias has shape \(8,\), wanted \(7\)"),
    ("fused_bias_residual", [(3, 7), (7,), (4, 7)], {}, r"residual .*\(4, 7\), wanted \(3, 7\)"),
    ("fused_bias_gelu", [(3, 7), (3,)], {}, r"bias has shape \(3,\), wanted \(7\)"),
    ("fused_bias_gelu", [(7,), (7,)], {}, r"at least 2 dimensions, got shape \(7,\)"),
    ("layer_norm", [(3, 7), (8,), (7,)], {"eps": 1e-5}, r"weight has shape \(8,\), wanted \(7\)"),
    ("layer_norm", [(3, 7), (7,), (1, 7)], {"eps": 1e-5}, r"bias has shape \(1, 7\), wanted \(7\)"),
    ("layer_norm", [(7,), (7,), (7,)], {"eps": 1e-5}, r"at least 2 dimensions, got shape \(7,\)"),
    (
        "fused_residual_layernorm",
        [(3, 7), (4, 7), (7,), (7,)],
        {"eps": 1e-5},
        r"residual has shape \(4, 7\), wanted \(3, 7\)",
    ),
    (
        "fused_residual_layernorm",
        [(3, 7), (3, 7), (7,), (6,)],
        {"eps": 1e-5},
        r"bias has shape \(6,\), wanted \(7\)",
    ),
    ("l2_normalize", [(7,)], {}, r"at least 2 dimensions, got shape \(7,\)"),
    ("build_attn_mask", [ids(7)], {}, r"\(7,\), wanted \(\*, \*\)"),
    ("qkv_split", [(2, 3, 13)], {"num_heads": 2}, r"\(2, 3, 13\), wanted a last dimension of 3E"),
    ("qkv_split", [(2, 3, 12)], {"num_heads": 3}, "3 heads do not divide the hidden size 4"),
    ("qkv_split", [(2, 3, 12)], {"num_heads": 0}, "0 heads do not divide the hidden size 4"),
    ("qkv_split", [(6, 12)], {"num_heads": 2}, r"qkv has shape \(6, 12\), wanted \(\*, \*, \*\)"),
    (
        "fused_scale_mask_softmax",
        [(6, 3, 3), (2, 4)],
        {"num_heads": 3, "scale": 1.0},
        r"scores has shape \(6, 3, 3\), wanted \(6, 4, 4\)",
    ),
    (
        "fused_scale_mask_softmax",
        [(5, 3, 3), (2, 3)],
        {"num_heads": 3, "scale": 1.0},
        r"scores has shape \(5, 3, 3\), wanted \(6, 3, 3\)",
    ),
    (
        "fused_scale_mask_softmax",
        [(6, 3, 3), (3,)],
        {"num_heads": 3, "scale": 1.0},
        r"mask has shape \(3,\), wanted \(\*, \*\)",
    ),
    ("rms_norm", [(3, 7), (8,)], {"eps": 1e-5}, r"weight has shape \(8,\), wanted \(7\)"),
    ("rms_norm", [(7,), (7,)], {"eps": 1e-5}, r"at least 2 dimensions, got shape \(7,\)"),
    (
        "fused_residual_rmsnorm",
        [(3, 7), (4, 7), (7,)],
        {"eps": 1e-5},
        r"residual has shape \(4, 7\), wanted \(3, 7\)",
    ),
    ("gemm_batched", [(4, 2, 3), (3, 3, 5)], {}, r"one G, got \(4, 2, 3\) and \(3, 3, 5\)"),
    ("geglu", [(3, 7), (3, 8)], {}, r"gate has shape \(3, 8\), wanted \(3, 7\)"),
    ("fused_split_geglu", [(3, 7)], {}, r"x has shape \(3, 7\), wanted rows of an even width"),
    ("fused_split_geglu", [(8,)], {}, r"x has shape \(8,\), wanted rows of an even width"),
    ("cls_pool", [(2, 0, 7)], {}, r"hidden has shape \(2, 0, 7\), wanted at least one token"),
    ("attn_reshape", [(5, 3, 4)], {"num_heads": 2}, "2 heads do not divide"),
    ("attn_reshape", [(5, 3)], {"num_heads": 1}, r"heads has shape \(5, 3\), wanted \(\*, \*, \*"),
    ("cls_pool", [(3, 7)], {}, r"hidden has shape \(3, 7\), wanted \(\*, \*, \*\)"),
    ("mean_pool", [(2, 3, 7), (2, 4)], {}, r"mask has shape \(2, 4\), wanted \(2, 3\)"),
    ("mean_pool", [(3, 7), (3, 7)], {}, r"hidden has shape \(3, 7\), wanted \(\*, \*, \*\)"),
    ("max_pool", [(2, 3, 7), (3, 3)], {}, r"mask has shape \(3, 3\), wanted \(2, 3\)"),
]

GOOD_CALLS = {
    "pad_to_batch": ([(5, 7)], {"seq_lengths": [2, 3], "max_seq": 3}),
    "unpad_from_batch": ([(2, 4, 7)], {"seq_lengths": [2, 3]}),
    "embedding_lookup": ([ids(3), (5, 7)], {}),
    "add_embeddings": ([(3, 7), (5, 7), ids(3)], {}),
    "gemm": ([(2, 3), (3, 5)], {}),
    "gemm_batched": ([(2, 3, 4), (2, 4, 5)], {}),
    "add_bias": ([(3, 7), (7,)], {}),
    "residual_add": ([(3, 7), (3, 7)], {}),
    "fused_bias_residual": ([(3, 7), (7,), (3, 7)], {}),
    "activate": ([(3, 7)], {"act": "silu"}),
    "gelu": ([(3, 7)], {}),
    "fused_bias_gelu": ([(3, 7), (7,)], {}),
    "layer_norm": ([(3, 7), (7,), (7,)], {"eps": 1e-5}),
    "fused_residual_layernorm": ([(3, 7), (3, 7), (7,), (7,)], {"eps": 1e-5}),
    "l2_normalize": ([(3, 7)], {}),
    "build_attn_mask": ([ids(3, 7)], {}),
    "fused_scale_mask_softmax": ([(6, 3, 3), (2, 3)], {"num_heads": 3, "scale": 1.0}),
    "attn_reshape": ([(6, 3, 4)], {"num_heads": 2}),
    "cast": ([(3, 7)], {"dtype": F32}),
    "rms_norm": ([(3, 7), (7,)], {"eps": 1e-5}),
    "fused_residual_rmsnorm": ([(3, 7), (3, 7), (7,)], {"eps": 1e-5}),
    "geglu": ([(3, 7), (3, 7)], {}),
    "swiglu": ([(3, 7), (3, 7)], {}),
    "fused_split_geglu": ([(3, 8)], {}),
    "fused_split_gate": ([(3, 8)], {"act": "silu"}),
    "fused_scale_mask_softmax_windowed": (
        [(6, 3, 3), (2, 3)],
        {"num_heads": 3, "scale": 1.0, "window": 2},
    ),
    "banded_qk": ([(6, 3, 4), (2, 3, 4)], {"window": 2}),
    "banded_softmax": ([(6, 3, 2)], {"scale": 1.0, "seq_lengths": [2, 3]}),
    "banded_sv": ([(6, 3, 2), (2, 3, 4)], {}),
    "apply_rope": ([(6, 3, 4), (3, 2), (3, 2)], {}),
    "fused_reshape_unpad": ([(6, 3, 4)], {"seq_lengths": [2, 3], "num_heads": 3}),
    "cls_pool": ([(2, 3, 7)], {}),
    "mean_pool": ([(2, 3, 7), (2, 3)], {}),
    "max_pool": ([(2, 3, 7), (2, 3)], {}),
}


WRONG_IDS = [f"{case[0]}-{number}" for number, case in enumerate(WRONG_SHAPES)]


@pytest.mark.parametrize(("op", "inputs", "options", "message"), WRONG_SHAPES, ids=WRONG_IDS)
def test_a_wrong_shape_is_refused_by_name(any_driver, op, inputs, options, message):
    with pytest.raises(ShapeError, match=f"^{op}: .*{message}"):
        call(any_driver, op, *inputs, **options)


@pytest.mark.parametrize(("op", "inputs", "options", "message"), WRONG_SHAPES, ids=WRONG_IDS)
def test_every_driver_refuses_in_the_same_words(op, inputs, options, message):
    said = []
    for driver in (NumpyDriver(), NullDriver()):
        with pytest.raises(ShapeError, match=message) as caught:
            call(driver, op, *inputs, **options)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("op", GOOD_CALLS)
def test_a_right_call_gives_the_same_shape_and_dtype_on_every_driver(op):
    inputs, options = GOOD_CALLS[op]
    first, second = (call(d, op, *inputs, **options) for d in (NumpyDriver(), NullDriver()))
    assert first.shape == second.shape
    assert first.dtype == second.dtype


@pytest.mark.parametrize("op", GOOD_CALLS)
def test_an_out_of_another_shape_is_refused(any_driver, op):
    inputs, options = GOOD_CALLS[op]
    shape = call(any_driver, op, *inputs, **options).shape
    for wrong in [(*shape, 1), (*shape[:-1], shape[-1] + 1), shape[1:]]:
        with pytest.raises(ShapeError, match=f"^{op}: out has shape .*wanted"):
            call(any_driver, op, *inputs, out=wrong, **options)


# ---- dtypes


@pytest.mark.parametrize("op", GOOD_CALLS)
def test_an_out_that_is_no_float_storage_is_refused(driver, op):
    inputs, options = GOOD_CALLS[op]
    shape = call(driver, op, *inputs, **options).shape
    for kind in (F64, I32):
        with pytest.raises(DtypeError, match=f"^{op}: out has dtype {np.dtype(kind)}"):
            call(driver, op, *inputs, out=(shape, kind), **options)


@pytest.mark.parametrize("op", ["cls_pool", "mean_pool", "max_pool", "build_attn_mask"])
def test_what_is_always_float32_refuses_a_float16_out(driver, op):
    inputs, options = GOOD_CALLS[op]
    shape = call(driver, op, *inputs, **options).shape
    with pytest.raises(DtypeError, match=f"^{op}: out has dtype float16, wanted float32"):
        call(driver, op, *inputs, out=(shape, F16), **options)


@pytest.mark.parametrize(("stored", "asked"), [(F32, F16), (F16, F32)], ids=["narrow", "widen"])
def test_a_look_up_rounds_into_the_dtype_of_out_as_every_operation_does(driver, stored, asked):
    table = driver.from_host(np.full((5, 7), 1.5, stored))
    got = driver.embedding_lookup(integers(driver, [3]), table, out=nans(driver, (1, 7), asked))
    assert got.dtype == asked
    assert (driver.to_host(got) == 1.5).all()


WRONG_DTYPES = [
    (op, position, kind)
    for op, (inputs, _) in GOOD_CALLS.items()
    if op not in ("pad_to_batch", "unpad_from_batch", "attn_reshape")  # these move any dtype
    for position, spec in enumerate(inputs)
    for kind in ((I64, F32) if isinstance(spec[0], tuple) else (F64, I32))
]


def dtype_id(value):
    return np.dtype(value).name if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("op", "position", "kind"), WRONG_DTYPES, ids=dtype_id)
def test_a_wrong_dtype_is_refused_by_name(driver, op, position, kind):
    inputs, options = GOOD_CALLS[op]
    inputs = list(inputs)
    spec = inputs[position]
    inputs[position] = (spec[0] if isinstance(spec[0], tuple) else spec, kind)
    with pytest.raises(DtypeError, match=f"^{op}: .*{np.dtype(kind)}"):
        call(driver, op, *inputs, **options)


@pytest.mark.parametrize(
    "op",
    [
        "fused_scale_mask_softmax",
        "fused_scale_mask_softmax_windowed",
        "mean_pool",
        "max_pool",
    ],
)
def test_a_mask_is_float32_and_nothing_else(driver, op):
    inputs, options = GOOD_CALLS[op]
    with pytest.raises(DtypeError, match=f"^{op}: .*float16"):
        call(driver, op, inputs[0], (inputs[1], F16), **options)


def test_a_refused_call_writes_nothing(driver):
    out = nans(driver, (3, 7), F32)
    x = driver.alloc_zeros((3, 7))
    with pytest.raises(ShapeError, match="bias"):
        driver.add_bias(x, driver.alloc_zeros((8,)), out=out)
    with pytest.raises(ShapeError, match="weight"):
        driver.layer_norm(x, driver.alloc_zeros((8,)), driver.alloc_zeros((7,)), eps=1e-5, out=out)
    with pytest.raises(DtypeError, match="float64"):
        driver.gemm(x, driver.from_host(np.zeros((7, 7), F64)), out=out)
    assert np.isnan(driver.to_host(out)).all()
