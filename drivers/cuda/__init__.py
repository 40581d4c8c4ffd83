"""CUDA devices through CuPy. Nothing here needs a GPU or CuPy before a device is opened."""

from drivers.cuda.driver import CudaDriver, UnopenedCuda, describe_cuda, open_cuda
from drivers.cuda.opening import device_index

__all__ = ["CudaDriver", "UnopenedCuda", "describe_cuda", "device_index", "open_cuda"]
