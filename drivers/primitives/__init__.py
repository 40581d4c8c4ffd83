"""The primitives of a driver: one Protocol per theme, joined as `Primitives`.

Names follow the 61-method compute trait this system implements (`drivers.trait`). Sizes are read
from the tensors; what remains is keyword-only. What the trait leaves open is decided here, for
every driver:

- **Storage and arithmetic.** Storage is float32 or float16, arithmetic float32, rounded once at the
  end; a value beyond float16's range becomes infinite. Ids are int32. Masks, rotary tables and
  position biases are float32.
- **`out`.** Every operation takes `out=`, which is written and returned, and allocates where none
  is given. Without `out` the result has the dtype of the first floating-point input, or what the
  docstring says. `out` is contiguous and may be an input only where the docstring says so; any
  other overlap of `out` with an input leaves undefined values.
- **Refusals.** A shape that does not fit raises ShapeError, a dtype DtypeError, both before any
  work. An id outside its table raises ShapeError with the id, its place and the table's size.
- **Masks.** A mask value <= MASKED_AT_OR_BELOW (-5000) means masked: its key has weight exactly 0
  and whatever lies under it, NaN too, leaves no trace. A value above is only added. A row whose
  keys are all masked gives zeros, never NaN.
- **Windows.** The window of the windowed softmax keeps the keys with |query - key| <= W // 2. A
  band of width W holds the offsets -W // 2 .. W - W // 2 - 1 of a key from its query: an even band
  omits the right edge, and the band of width W + 1 equals the (even) window W.
- **Size 0.** No rows, no sequences or no ids give an empty result. A sequence of length 0 is all
  padding; a pool over it gives zeros. Only `cls_pool` needs a first token, so it refuses S = 0.

Shape letters: `drivers.types`.
"""

from __future__ import annotations

from typing import Protocol

from drivers.primitives.arithmetic import Activations, Gates, Norms, Products
from drivers.primitives.attention import AttentionSteps, Banded, Pooling, Rotary
from drivers.primitives.memory import Batching, Lookups, Memory
from drivers.types import T

__all__ = ["Primitives"]


class Primitives(
    Memory[T],
    Batching[T],
    Lookups[T],
    Products[T],
    Activations[T],
    Gates[T],
    Norms[T],
    AttentionSteps[T],
    Banded[T],
    Rotary[T],
    Pooling[T],
    Protocol[T],
):
    """All primitives of a driver."""
