"""The driver that holds no values: shapes, calls, floating point operations and bytes."""

from drivers.null.driver import NullDriver
from drivers.null.tensor import NullTensor, Tally

__all__ = ["NullDriver", "NullTensor", "Tally"]
