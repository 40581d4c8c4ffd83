"""A driver of CUDA kernels, run on CPU fibers; what has no kernel yet is NumPy."""

from __future__ import annotations

import numpy as np

from drivers import NumpyDriver, shapes
from drivers.cuda.attention_steps import CudaSoftmax
from drivers.cuda.banded import CudaBanded
from drivers.cuda.batching import CudaBatching
from drivers.cuda.launches import varlen_attention
from drivers.cuda.lookups import CudaLookups
from drivers.cuda.memory import CudaMemory
from drivers.cuda.norms import CudaNorms
from drivers.cuda.pooling import CudaPooling
from drivers.cuda.products import CudaProducts
from drivers.cuda.rotary import CudaRotary
from tests.cuda_fibers.device import FiberDevice


def limit(window):
    """A window as the kernel takes it."""
    return np.int32(-1 if window is None else window)


def run_attention(
    device,
    qkv,
    cu_seqlens,
    *,
    max_seq,
    num_heads,
    kv_heads,
    head_dim,
    scale,
    window_left=None,
    window_right=None,
    position_bias=None,
):
    """The kernel on host arrays: (T, (N + 2 KV) D) -> (T, N D)."""
    launch = varlen_attention.varlen_attention(
        batch=len(cu_seqlens) - 1, max_seq=max_seq, num_heads=num_heads, head_dim=head_dim
    )
    out = device.new((len(qkv), num_heads * head_dim), qkv.dtype)
    positions = 0 if position_bias is None else (position_bias.shape[1] + 1) // 2
    inputs = [None if x is None else device.upload(x) for x in (qkv, cu_seqlens, position_bias)]
    sizes = [np.int32(n) for n in (positions, num_heads, kv_heads, head_dim)]
    windows = [limit(window_left), limit(window_right)]
    arguments = (out, *inputs, *sizes, np.float32(scale), *windows)
    device.launch("varlen_attention", qkv.dtype, launch, arguments)
    return out


class FiberDriver(
    CudaMemory,
    CudaBatching,
    CudaProducts,
    CudaSoftmax,
    CudaBanded,
    CudaRotary,
    CudaNorms,
    CudaLookups,
    CudaPooling,
    NumpyDriver,
):
    """The themes that have kernels, attention, and NumPy behind them.

    `kernel_launches_total` counts attention's launches, `launches_total` those of the themes.
    """

    def __init__(self, order, edit=None) -> None:
        NumpyDriver.__init__(self)
        CudaProducts.__init__(self, FiberDevice(order, edit))
        self.kernel_launches_total = 0

    def from_host(self, array):
        return self.device.upload(array)

    def prepare_batch(self, encodings, max_seq):
        return self._with_known_ids(super().prepare_batch(encodings, max_seq))

    def prepare_batch_unpadded(self, encodings):
        return self._with_known_ids(super().prepare_batch_unpadded(encodings))

    def _with_known_ids(self, batch):
        for ids in (batch.input_ids, batch.token_type_ids, batch.position_ids):
            self._remember_ids(ids, self.device.download(ids))
        return batch

    def attention(
        self,
        qkv,
        batch,
        *,
        num_heads,
        kv_heads=None,
        head_dim=None,
        scale=None,
        rope=None,
        qk_norm=None,
        window_left=None,
        window_right=None,
        causal=False,
        position_bias=None,
    ):
        shapes.flat_batch("attention", qkv.shape, batch)
        shapes.reach("attention", window_left, window_right)
        kv_heads, head_dim = shapes.qkv("attention", qkv.shape, num_heads, kv_heads, head_dim)
        if rope is not None or qk_norm is not None:
            qkv = self._turned(qkv, batch, num_heads, kv_heads, head_dim, rope, qk_norm)
        self.kernel_launches_total += 1
        return run_attention(
            self.device,
            qkv,
            batch.cu_seqlens,
            max_seq=batch.max_seq,
            num_heads=num_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if scale is None else scale,
            window_left=window_left,
            window_right=0 if causal else window_right,
            position_bias=position_bias,
        )

    def _turned(self, qkv, batch, num_heads, kv_heads, head_dim, rope, qk_norm):
        """qkv with q and k normed and rotated in NumPy: (T, (N + 2 KV) D)."""
        sizes = {"num_heads": num_heads, "kv_heads": kv_heads, "head_dim": head_dim}
        lengths = batch.seq_lengths
        q, k, v = self.fused_pad_qkv_split(
            qkv, seq_lengths=lengths, max_seq=batch.max_seq, **sizes
        )  # (B * N, S, D), (B * KV, S, D)
        if qk_norm is not None:
            q = self.rms_norm(q, qk_norm.q_weight, eps=qk_norm.eps)
            k = self.rms_norm(k, qk_norm.k_weight, eps=qk_norm.eps)
        if rope is not None:
            q, k = (self.apply_rope(x, rope.cos, rope.sin) for x in (q, k))
        flat = [
            self.fused_reshape_unpad(x, seq_lengths=lengths, num_heads=heads)
            for x, heads in ((q, num_heads), (k, kv_heads), (v, kv_heads))
        ]  # (T, N D), (T, KV D), (T, KV D)
        return np.concatenate(flat, axis=1)
