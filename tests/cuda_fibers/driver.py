"""A driver of CUDA kernels, run on CPU fibers; what has no kernel yet is NumPy."""

from __future__ import annotations

from drivers import NumpyDriver
from drivers.cuda.attention import CudaAttention
from drivers.cuda.attention_steps import CudaSoftmax
from drivers.cuda.banded import CudaBanded
from drivers.cuda.batching import CudaBatching
from drivers.cuda.lookups import CudaLookups
from drivers.cuda.memory import CudaMemory
from drivers.cuda.norms import CudaNorms
from drivers.cuda.pooling import CudaPooling
from drivers.cuda.products import CudaProducts
from drivers.cuda.rotary import CudaRotary
from tests.cuda_fibers.device import FiberDevice


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
    CudaAttention,
    NumpyDriver,
):
    """The themes that have kernels, and NumPy behind them; `launches_total` counts launches."""

    def __init__(self, order, edit=None) -> None:
        NumpyDriver.__init__(self)
        CudaProducts.__init__(self, FiberDevice(order, edit))

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
