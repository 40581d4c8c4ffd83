"""The masked softmaxes of padded attention."""

from __future__ import annotations

import numpy as np

from drivers import dtypes, shapes
from drivers.cuda.base import CudaOps
from drivers.cuda.device import Array
from drivers.cuda.launches import softmax
from drivers.cuda.storage import mix_of, storage_of


class CudaSoftmax(CudaOps):
    """The softmaxes of `drivers.primitives.attention.AttentionSteps`, a warp a row."""

    def fused_scale_mask_softmax(
        self,
        scores: Array,
        mask: Array,
        *,
        num_heads: int,
        scale: float,
        window_left: int | None = None,
        window_right: int | None = None,
        position_bias: Array | None = None,
        out: Array | None = None,
    ) -> Array:
        op = "fused_scale_mask_softmax"
        window = (window_left, window_right)
        return self._masked_softmax(op, scores, mask, num_heads, scale, window, position_bias, out)

    def fused_scale_mask_softmax_windowed(
        self,
        scores: Array,
        mask: Array,
        *,
        num_heads: int,
        scale: float,
        window: int,
        out: Array | None = None,
    ) -> Array:
        op = "fused_scale_mask_softmax_windowed"
        reach = (window // 2, window // 2)
        return self._masked_softmax(op, scores, mask, num_heads, scale, reach, None, out)

    def causal_softmax(self, scores: Array, *, scale: float, out: Array | None = None) -> Array:
        op = "causal_softmax"
        shapes.squares(op, "scores", scores.shape)
        storage_of(op, scores)
        out = self._out(op, out, scores.shape, scores.dtype)
        self._softmax_rows(op, scores, None, 1, scale, (None, 0), None, out)
        return out

    def _masked_softmax(
        self,
        op: str,
        scores: Array,
        mask: Array,
        num_heads: int,
        scale: float,
        window: tuple[int | None, int | None],
        position_bias: Array | None,
        out: Array | None,
    ) -> Array:
        """The checks of both masked softmaxes, and their launch."""
        bias_shape = None if position_bias is None else position_bias.shape
        shapes.softmax(op, scores.shape, mask.shape, num_heads, window, bias_shape)
        storage_of(op, scores)
        dtypes.require(op, "mask", mask, dtypes.FLOAT32)
        dtypes.require(op, "position_bias", position_bias, dtypes.FLOAT32)
        out = self._out(op, out, scores.shape, scores.dtype)
        self._softmax_rows(op, scores, mask, num_heads, scale, window, position_bias, out)
        return out

    def _softmax_rows(
        self,
        op: str,
        scores: Array,
        mask: Array | None,
        num_heads: int,
        scale: float,
        window: tuple[int | None, int | None],
        position_bias: Array | None,
        out: Array,
    ) -> None:
        """out = softmax(scores * scale + mask + bias) within the window: (..., S, S)."""
        storage = storage_of(op, out, scores)
        if not out.size:
            return
        seq = scores.shape[-1]
        launch = softmax.masked_softmax(
            mix=mix_of(storage, out, scores), groups=scores.size // (seq * seq), seq=seq
        )
        positions = 0 if position_bias is None else (position_bias.shape[1] + 1) // 2
        left, right = (np.int32(-1 if reach is None else min(reach, seq)) for reach in window)
        self._launch(
            "softmax",
            storage,
            launch,
            out,
            scores,
            mask,
            position_bias,
            np.int32(seq),
            np.int32(num_heads),
            np.int32(positions),
            np.float32(scale),
            left,
            right,
        )
