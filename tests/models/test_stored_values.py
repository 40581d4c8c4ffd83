"""Stored tensors become host arrays block by block: every stored dtype to every wanted one."""

from __future__ import annotations

import numpy as np
import pytest
from folders import encode_tensor, write_safetensors

from arch import CheckpointError
from arch.stored import BLOCK_VALUES, to_host
from arch.weights import WeightReader, WeightSpec, open_safetensors

STORED = ("F32", "F16", "BF16")
WANTED = (np.float32, np.float16)
SHAPES = ((2 * BLOCK_VALUES + 7,), (BLOCK_VALUES // 5, 15), (1,), (0,), (3, 0))


def written(folder, values, stored, *, padded_header=True):
    """The values as stored, and the tensor `x` of a file that holds them between two others."""
    rows = [
        (name, stored, np.shape(part), encode_tensor(part, stored))
        for name, part in (("a", np.ones(5)), ("x", values), ("z", np.full(9, 2.0)))
    ]
    write_safetensors(folder / "model.safetensors", rows, padded_header=padded_header)
    exact = encode_tensor(values, stored)
    if stored == "BF16":
        bits = np.frombuffer(exact, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(values.shape)
    return np.frombuffer(exact, {"F32": "<f4", "F16": "<f2"}[stored]).reshape(values.shape)


@pytest.mark.parametrize("wanted", WANTED, ids=["f32", "f16"])
@pytest.mark.parametrize("padded_header", [True, False], ids=["even", "odd"])
@pytest.mark.parametrize("stored", STORED)
def test_values_over_several_blocks_are_those_stored(tmp_path, rng, stored, padded_header, wanted):
    for shape in SHAPES:
        values = rng.standard_normal(shape).astype(np.float32)
        exact = written(tmp_path, values, stored, padded_header=padded_header)
        tensors = open_safetensors(tmp_path / "model.safetensors")
        got = to_host("x", tensors["x"], wanted)
        assert got.dtype == wanted
        np.testing.assert_array_equal(got, exact.astype(wanted))
        assert to_host("a", tensors["a"]).tolist() == [1] * 5  # beside pages that were given back
        assert to_host("z", tensors["z"]).tolist() == [2] * 9
        again = to_host("x", tensors["x"], wanted)
        np.testing.assert_array_equal(again, exact.astype(wanted))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("place", [0, BLOCK_VALUES - 1, BLOCK_VALUES, -1])
def test_a_value_that_is_not_finite_is_seen_in_every_block(tmp_path, stored, bad, place):
    values = np.ones(2 * BLOCK_VALUES + 3, np.float32)
    values[place] = bad
    written(tmp_path, values, stored)
    tensor = open_safetensors(tmp_path / "model.safetensors")["x"]
    for wanted in WANTED:
        with pytest.raises(CheckpointError, match="x holds values that are not finite"):
            to_host("x", tensor, wanted)


@pytest.mark.parametrize("stored", ["F32", "BF16"])
@pytest.mark.parametrize("value", [131_072.0, -131_072.0])
@pytest.mark.parametrize("place", [0, -1])
def test_a_value_beyond_float16_is_seen_in_every_block(tmp_path, stored, value, place):
    values = np.ones(2 * BLOCK_VALUES + 3, np.float32)
    values[place] = value
    written(tmp_path, values, stored)
    tensor = open_safetensors(tmp_path / "model.safetensors")["x"]
    to_host("x", tensor, np.float32)
    with pytest.raises(CheckpointError, match=r"x reaches 1.31e\+05, beyond float16 \(65504\)"):
        to_host("x", tensor, np.float16)


@pytest.mark.parametrize("wanted", WANTED, ids=["f32", "f16"])
@pytest.mark.parametrize("stored", STORED)
def test_stacked_parts_stand_one_below_the_other(tmp_path, rng, stored, wanted):
    q, k = rng.standard_normal((7, 5)), rng.standard_normal((3, 5))
    rows = [(n, stored, np.shape(v), encode_tensor(v, stored)) for n, v in (("q", q), ("k", k))]
    write_safetensors(tmp_path / "model.safetensors", rows)
    reader = WeightReader(tmp_path, open_safetensors(tmp_path / "model.safetensors"), anchor="q")
    spec = WeightSpec("both", ("q", "k"), ("QE", "KE"), "linear")
    got = reader.read([spec], {"Q": 7, "K": 3, "E": 5}, wanted)["both"]
    assert got.dtype == wanted
    assert got.shape == (10, 5)
    np.testing.assert_allclose(got, np.concatenate([q, k]), rtol=2**-8)
    tensors = open_safetensors(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(got[:7], to_host("q", tensors["q"], wanted))
