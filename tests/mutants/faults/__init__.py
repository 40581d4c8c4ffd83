"""Mistakes that a driver could hold, each as one replacement in its source, and who must see it."""

from __future__ import annotations

from tests.mutants.faults.arithmetic import ACTIVATIONS, NORMS, PRODUCTS
from tests.mutants.faults.attention import LAYOUTS, SOFTMAXES
from tests.mutants.faults.forward import BANDS, FORWARDS, PARTS

FAULTS = (*NORMS, *PRODUCTS, *ACTIVATIONS, *SOFTMAXES, *LAYOUTS, *BANDS, *FORWARDS, *PARTS)
