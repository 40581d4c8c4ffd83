"""CUDA devices through CuPy. Nothing here needs a GPU or CuPy before a device is opened."""

from drivers.cuda.opening import device_index
from drivers.cuda.planned import UnopenedCuda, describe_cuda, open_cuda

__all__ = ["UnopenedCuda", "describe_cuda", "device_index", "open_cuda"]
