"""The portable driver: every primitive in NumPy."""

from drivers.numpy.driver import NumpyDriver

__all__ = ["NumpyDriver"]
