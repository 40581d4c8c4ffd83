"""What a layer of a full-size model takes on the CUDA driver: launches, floating point operations,
and bytes of activations. Nothing is computed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from arch import classic_bert, modern_bert, nomic_bert, qwen3
from drivers import Encoding
from drivers.cuda.driver import CudaDriver
from drivers.dtypes import FLOAT16, FLOAT32
from drivers.types import NormWeights, QkNorm, Rope
from tests.cuda_fibers.fake_cublaslt import FakeCublasLt

pytestmark = pytest.mark.slow  # beside the other tests of the CUDA driver

SEQUENCES, LENGTH = 5, 512  # as many tokens as no weight has rows
TOKENS = SEQUENCES * LENGTH


class CountingDevice:
    """Memory that is never touched, and launches that only count what they are given."""

    name = "cuda:0"
    stream_address = 1

    def __init__(self):
        self.launches = []
        self.activation_bytes = 0

    def count(self, name, written, *arguments):
        """Tokens that are written, and those that are read, each once."""
        self.launches.append(name)
        arrays = [x for x in arguments if isinstance(x, np.ndarray) and x.shape[:1] == (TOKENS,)]
        read = {x.ctypes.data: x.nbytes for x in arrays}
        self.activation_bytes += written.nbytes + sum(read.values())

    def new(self, shape, dtype):
        return np.empty(shape, dtype)

    def upload(self, array):
        return array

    def download(self, x):
        return np.zeros(x.shape, x.dtype)

    def launch(self, theme, dtype, launch, arguments):
        self.count(launch.kernel, *arguments)

    def address(self, x):
        return x.ctypes.data

    def cublaslt(self):
        return FakeCublasLt()

    def load_kernels(self, dtype):
        pass

    def open_arena(self):
        pass

    close_arena = synchronize = open_arena


class CountingDriver(CudaDriver):
    """The driver as it is, on such a device. Counts operations in `flops`."""

    def __init__(self):
        super().__init__(CountingDevice())
        self.flops = 0
        self._matmul = self._count_product

    def _count_product(
        self, op, a, b, out, *, transpose_b, bias=None, gelu_tanh=False, residual=None
    ):
        self.device.count("product", out, a, residual)
        self.flops += 2 * out.size * a.shape[-1]

    def attention(self, qkv, batch, *, num_heads, **options):
        left, right = options.get("window_left"), options.get("window_right")
        offset = np.arange(LENGTH) - np.arange(LENGTH)[:, None]  # (S, S), key - query
        seen = (offset >= -(LENGTH if left is None else left)) & (
            offset <= (0 if options.get("causal") else LENGTH if right is None else right)
        )
        out = super().attention(qkv, batch, num_heads=num_heads, **options)
        self.flops += 4 * SEQUENCES * int(seen.sum()) * out.shape[1]
        return out


def empty(*shape, dtype=FLOAT16):
    return np.empty(shape, dtype)


def norm(width, kind="layer"):
    return NormWeights(empty(width), empty(width) if kind == "layer" else None, 1e-5, kind)


def rope(head_dim):
    return Rope(*(empty(LENGTH, head_dim // 2, dtype=FLOAT32) for _ in "cs"))


def bert(hidden, inner, heads, layers, act="gelu"):
    weights = classic_bert.LayerWeights(
        empty(3 * hidden, hidden), empty(3 * hidden), empty(hidden, hidden), empty(hidden),
        norm(hidden), empty(inner, hidden), empty(inner), empty(hidden, inner), empty(hidden),
        norm(hidden),
    )  # fmt: skip
    cfg = SimpleNamespace(num_heads=heads, act=act)
    run = classic_bert.encoder_layer
    return hidden, [(layers, lambda d, x, batch: run(d, x, weights, None, batch, cfg))]


def nomic(hidden, inner, heads, layers):
    weights = nomic_bert.LayerWeights(
        empty(3 * hidden, hidden), None, empty(hidden, hidden), None, norm(hidden),
        empty(2 * inner, hidden), None, empty(hidden, inner), None, norm(hidden),
    )  # fmt: skip
    cfg, turns = SimpleNamespace(num_heads=heads, act="silu"), rope(hidden // heads)
    run = nomic_bert.encoder_layer
    return hidden, [(layers, lambda d, x, batch: run(d, x, weights, turns, batch, cfg))]


def modern(hidden, inner, heads, of_whole, of_window):
    """Layers that see the whole sequence, and those with a window."""
    cfg = SimpleNamespace(num_heads=heads, act="gelu")

    def layer(half_window):
        weights = modern_bert.LayerWeights(
            norm(hidden), empty(3 * hidden, hidden), None, rope(hidden // heads), half_window,
            empty(hidden, hidden), None, norm(hidden), empty(2 * inner, hidden), None,
            empty(hidden, inner), None,
        )  # fmt: skip
        return lambda d, x, batch: modern_bert.encoder_layer(d, x, weights, batch, cfg)

    return hidden, [(of_whole, layer(None)), (of_window, layer(64))]


def qwen(hidden, inner, heads, kv_heads, head_dim, layers):
    width = (heads + 2 * kv_heads) * head_dim
    weights = qwen3.LayerWeights(
        attn_norm=norm(hidden, "rms"), qkv=empty(width, hidden), qkv_bias=None,
        qk_norm=QkNorm(empty(head_dim), empty(head_dim), 1e-6), rope=rope(head_dim),
        window_left=None, attn_out=empty(hidden, heads * head_dim), attn_out_bias=None,
        mlp_norm=norm(hidden, "rms"), mlp_in=empty(2 * inner, hidden),
        mlp_out=empty(hidden, inner),
    )  # fmt: skip
    cfg = SimpleNamespace(num_heads=heads, kv_heads=kv_heads, head_dim=head_dim, act="silu")
    return hidden, [(layers, lambda d, x, batch: qwen3.decoder_layer(d, x, weights, batch, cfg))]


MODELS = {
    "MiniLM-L6": (bert(384, 1536, 12, 6), 26.0e6),
    "BGE-base": (bert(768, 3072, 12, 12), 188.7e6),
    "BGE-large": (bert(1024, 4096, 16, 24), 654e6),
    "NomicBERT": (nomic(768, 3072, 12, 12), 245e6),
    "ModernBERT-base": (modern(768, 1152, 12, 8, 14), 239e6),
    "ModernBERT-large": (modern(1024, 2624, 16, 10, 18), 717e6),
    "Qwen3-Embedding-0.6B": (qwen(1024, 3072, 16, 8, 128, 28), 940e6),
}


def work_of(hidden, layer):
    """The driver after one layer."""
    driver = CountingDriver()
    ids = np.zeros(LENGTH, np.int32)
    batch = driver.prepare_batch_unpadded([Encoding(ids)] * SEQUENCES)
    out = layer(driver, empty(TOKENS, hidden), batch)
    assert out.shape == (TOKENS, hidden)
    return driver


@pytest.mark.parametrize("name", MODELS)
def test_operations_of_a_token_are_those_of_the_model_and_no_more(name):
    (hidden, layers), wanted = MODELS[name]
    flops = sum(count * work_of(hidden, layer).flops for count, layer in layers)
    assert flops / TOKENS == pytest.approx(wanted, rel=0.01)


TAKEN = {  # launches of a layer, and bytes of activations of a token in widths of the model
    "BGE-base": (8, 68),  # the erf form of GELU is a launch of its own
    "ModernBERT-base": (8, 48),  # q and k are rotated as attention reads them
    "NomicBERT": (8, 68),
    "Qwen3-Embedding-0.6B": (9, 88),  # the norm of q and k is a launch, and rotates them
}


@pytest.mark.parametrize("name", TAKEN)
def test_launches_and_bytes_of_a_layer(name):
    (hidden, layers), _ = MODELS[name]
    for _, layer in layers:
        device = work_of(hidden, layer).device
        assert (len(device.launches), device.activation_bytes / TOKENS / hidden) == TAKEN[name]


def test_a_layer_without_erf_is_seven_launches():
    hidden, [(_, layer)] = bert(768, 3072, 12, 12, act="gelu_tanh")
    driver = work_of(hidden, layer)
    assert len(driver.device.launches) == 7
    assert driver.device.activation_bytes / TOKENS == 52 * hidden
