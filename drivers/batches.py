"""The host half of `prepare_batch`: encodings to id and mask arrays. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers import shapes
from drivers.errors import DtypeError
from drivers.types import MASK_VALUE, BatchInputs, Encoding, T, lengths_of


def batch_inputs(
    op: str,
    encodings: Sequence[Encoding],
    max_seq: int,
    *,
    padded: bool,
    upload: Callable[[NDArray[Any]], T],
) -> BatchInputs[T]:
    """The batch's ids, positions and masks (`drivers.types.BatchInputs`), each sent by `upload`.

    Raises ShapeError where the batch or a sequence is empty, or longer than `max_seq`, DtypeError
    for ids that are not int32.
    """
    shapes.encodings(op, encodings, max_seq)
    for row, encoding in enumerate(encodings):
        for name, ids in (
            ("input", encoding.input_ids),
            ("type", encoding.type_ids),
            ("position", encoding.position_ids),
        ):
            if ids is not None and ids.dtype != np.int32:
                raise DtypeError(
                    f"{op}: row {row} has {name} ids of dtype {ids.dtype}, wanted int32"
                )
    lengths = lengths_of(encodings)
    position = np.arange(max_seq, dtype=np.int32)  # (S,)
    real = position < np.asarray(lengths)[:, None]  # (B, S)

    def layout(flat: NDArray[np.int32]) -> T:
        """(T,) as it is, or spread over (B * S,) with zeros between."""
        if not padded:
            return upload(flat)
        spread = np.zeros(real.shape, dtype=np.int32)  # (B, S)
        spread[real] = flat
        return upload(spread.reshape(-1))

    type_ids = [
        np.zeros(len(e), dtype=np.int32) if e.type_ids is None else e.type_ids for e in encodings
    ]
    position_ids = [
        position[: len(e)] if e.position_ids is None else e.position_ids for e in encodings
    ]
    return BatchInputs(
        input_ids=layout(np.concatenate([e.input_ids for e in encodings])),
        token_type_ids=layout(np.concatenate(type_ids)),
        position_ids=layout(np.concatenate(position_ids)),
        cu_seqlens=upload(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
        int_mask=upload(real.astype(np.int32)),
        attn_mask=upload(np.where(real, 0.0, MASK_VALUE).astype(np.float32)),
        seq_lengths=lengths,
        pool_skip=tuple(e.pool_skip for e in encodings),
        max_seq=max_seq,
        padded=padded,
    )
