"""Faults in norms, products, sums, activations and gates."""

from __future__ import annotations

from tests.mutants.fault import Fault

ROWS = "drivers/numpy/rows.py"
SUMS = "drivers/numpy/arithmetic.py"
ACTS = "drivers/activations.py"
FORWARD = "drivers/forward_ops.py"

NORMS = (
    Fault(
        "unbiased variance",
        ROWS,
        "/ np.float32(y.shape[1])",
        "/ np.float32(max(1, y.shape[1] - 1))",
        "norms",
    ),
    Fault(
        "eps outside the root",
        ROWS,
        "1 / np.sqrt(square + np.float32(eps))",
        "1 / (np.sqrt(square) + np.float32(eps))",
        "norms",
    ),
    Fault("residual left out of a norm", ROWS, "y += residual[block]", "pass", "norms"),
    Fault("norm without its bias", ROWS, "            y += bias\n", "            pass\n", "norms"),
    Fault("mean taken off an RMS norm", ROWS, "if centred:", "if True:", "norms"),
    Fault(
        "statistics in float16",
        ROWS,
        "y = x[block].astype(np.float32)  # a copy",
        "y = x[block].copy()",
        "norms",
    ),
    Fault(
        "l2 norm of a zero row",
        SUMS,
        "wide / np.maximum(norm, np.float32(L2_EPS))",
        "wide / (norm + np.float32(0.001))",
        "norms",
    ),
    Fault(
        "residual sum before the norm in storage",
        FORWARD,
        "return self.fused_residual_rmsnorm(x, residual, norm.weight, eps=norm.eps)",
        "return self.rms_norm(x, norm.weight, eps=norm.eps)",
        "forward_ops",
    ),
    Fault("sandwich as pre-norm", FORWARD, 'if order == "sandwich":', "if False:", "forward_ops"),
    Fault(
        "sandwich rounded twice",
        FORWARD,
        "out=self.alloc_zeros(x.shape, FLOAT32))",
        "out=self.alloc_zeros(x.shape, x.dtype))",
        "forward_ops",
    ),
)

PRODUCTS = (
    Fault(
        "product summed in float16",
        SUMS,
        "np.matmul(float32(a), right, out=out)",
        "out[...] = np.matmul(a.astype(np.float16), right.astype(np.float16))",
        "products",
    ),
    Fault(
        "terms of a float16 product rounded",
        SUMS,
        "out[...] = np.matmul(float32(a), right)",
        "out[...] = (a[..., None] * right[..., None, :, :].astype(a.dtype)).sum(axis=-2)",
        "products",
    ),
    Fault(
        "key heads in another order",
        SUMS,
        "_product(tall, b, transpose_b,",
        "_product(tall, b[::-1], transpose_b,",
        "products attention_options",
    ),
    Fault(
        "query heads dealt out in turn",
        SUMS,
        "tall = a.reshape(len(b), rows_each, a.shape[2])",
        "tall = a.reshape(-1, len(b), *a.shape[1:]).swapaxes(0, 1).reshape(len(b), rows_each, -1)",
        "products attention_options",
    ),
    Fault("third summand lost", SUMS, "for other in others[1:]:", "for other in ():", "products"),
    Fault("sum in float16", SUMS, "total = float32(first)", "total = first", "products"),
    Fault(
        "residual of a linear lost",
        FORWARD,
        "return y if residual is None else self.residual_add(y, residual, out=y)",
        "return y",
        "forward_ops",
    ),
    Fault(
        "bias of a linear lost",
        FORWARD,
        "y = y if bias is None else self.add_bias(y, bias, out=y)",
        "pass",
        "forward_ops",
    ),
    Fault(
        "bias of a gated linear lost",
        FORWARD,
        "self.fused_split_gate(self.linear(x, weight, bias), act)",
        "self.fused_split_gate(self.linear(x, weight), act)",
        "forward_ops",
    ),
)

ACTIVATIONS = (
    Fault("tanh for erf", ACTS, '"gelu": _gelu,', '"gelu": _gelu_tanh,', "activations"),
    Fault("erf for tanh", ACTS, '"gelu_tanh": _gelu_tanh,', '"gelu_tanh": _gelu,', "activations"),
    Fault(
        "slope of quick gelu",
        ACTS,
        "_sigmoid_times(x, 1.702)",
        "_sigmoid_times(x, 1.7)",
        "activations",
    ),
    Fault(
        "silu as quick gelu",
        ACTS,
        "_sigmoid_times(x, 1.0)",
        "_sigmoid_times(x, 1.702)",
        "activations",
    ),
    Fault("cubic term of gelu", ACTS, "np.float32(0.044715)", "np.float32(0.0447)", "activations"),
    Fault(
        "bias after the activation",
        ACTS,
        "apply(block if bias is None else block + bias)",
        "apply(block) + (0 if bias is None else bias)",
        "activations",
    ),
    Fault("gate added", ACTS, "y *= other[rows]", "y += other[rows]", "gates"),
    Fault(
        "gate rounded twice",
        ACTS,
        "y *= other[rows]",
        "y = y.astype(out.dtype).astype(np.float32) * other[rows]",
        "gates",
    ),
    Fault(
        "swiglu activates the value",
        SUMS,
        'gated(gate, value, "silu", out)',
        'gated(value, gate, "silu", out)',
        "gates",
    ),
    Fault(
        "geglu activates the gate",
        SUMS,
        'gated(value, gate, "gelu", out)',
        'gated(gate, value, "gelu", out)',
        "gates",
    ),
    Fault(
        "gate halves swapped",
        SUMS,
        "gated(x[..., : shape[-1]], x[..., shape[-1] :], act, out)",
        "gated(x[..., shape[-1] :], x[..., : shape[-1]], act, out)",
        "gates",
    ),
    Fault(
        "tanh form in the fused gate",
        SUMS,
        '("fused_split_geglu", x, "gelu", out)',
        '("fused_split_geglu", x, "gelu_tanh", out)',
        "gates",
    ),
    Fault(
        "value given as gate",
        SUMS,
        "first[...] = x[..., : shape[-1]]",
        "first[...] = x[..., shape[-1] :]",
        "gates",
    ),
    Fault(
        "fused bias gelu by tanh",
        SUMS,
        '("fused_bias_gelu", x, "gelu", bias, out)',
        '("fused_bias_gelu", x, "gelu_tanh", bias, out)',
        "activations",
    ),
)
