"""One thing wrong, or merely unusual, about an array: what random calls are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Damage = Callable[[np.random.Generator, np.ndarray], np.ndarray]

# ---- the same values, kept in another way


def read_only(rng, array):
    array = array.copy()
    array.flags.writeable = False
    return array


def misaligned(rng, array):
    """At an address that no value of its dtype may have."""
    memory = np.zeros(array.nbytes + array.itemsize, np.uint8)
    start = 1 + -memory.ctypes.data % array.itemsize
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def strided(rng, array):
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array


def backwards(rng, array):
    return np.ascontiguousarray(array[::-1])[::-1] if array.ndim else array


def column_major(rng, array):
    return np.asfortranarray(array)


def cut_out(rng, array):
    """The middle of a larger array, NaN or the largest integer around it."""
    wall = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max
    larger = np.full([size + 2 for size in array.shape], wall, array.dtype)
    middle = larger[(slice(1, -1),) * array.ndim]
    middle[...] = array
    return middle


STORED_OTHERWISE: dict[str, Damage] = {
    f.__name__: f for f in (read_only, misaligned, strided, backwards, column_major, cut_out)
}

# ---- another dtype


def as_dtype(dtype) -> Damage:
    def cast(rng, array):
        with np.errstate(all="ignore"):
            return (abs(array) if dtype == "u1" else array).astype(dtype)

    return cast


OTHER_DTYPES: dict[str, Damage] = {
    name: as_dtype(name) for name in ("f2", "f8", "i4", "i8", "u1", "?", ">f4", ">i4")
}

# ---- another shape


def one_more_dimension(rng, array):
    return array[None]


def one_dimension_less(rng, array):
    return array[0] if len(array) else array.reshape(-1)


def one_row_more(rng, array):
    return np.concatenate([array, array[:1]]) if len(array) else np.ones((1, *array.shape[1:]))


def one_row_less(rng, array):
    return array[1:]


def one_column_more(rng, array):
    return np.concatenate([array, array[..., :1]], axis=-1)


def one_column_less(rng, array):
    return array[..., 1:]


def nothing_left(rng, array):
    return array[:0]


OTHER_SHAPES: dict[str, Damage] = {
    f.__name__: f
    for f in (
        one_more_dimension,
        one_dimension_less,
        one_row_more,
        one_row_less,
        one_column_more,
        one_column_less,
        nothing_left,
    )
}

# ---- values that are no numbers, or too large for one


def not_finite(rng, array):
    """A few values NaN or infinite; arrays of other dtypes stay as they are."""
    if array.dtype.kind != "f" or not array.size:
        return array
    array = array.copy()
    places = rng.integers(0, array.size, rng.integers(1, 4))
    array.ravel()[places] = rng.choice([np.nan, np.inf, -np.inf], len(places))
    return array
