"""The bits of a row stay the same whatever stands beside it: alone, in groups, in any order."""

from __future__ import annotations

import os

import numpy as np
import pytest

from drivers import Encoding, open_driver
from drivers.types import EmbeddingTable, NormWeights
from tests.ops.test_attention_options import OPTIONS, Case, batch_of
from tests.ops.test_pooling import MODES
from tests.tiles import TILE_SETS

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = [name for name in rayvec_native.instruction_sets() if name not in TILE_SETS]
ROWS = 40
F32 = np.dtype(np.float32)


@pytest.fixture(params=SETS)
def cpu(request):
    return open_driver(f"cpu:{request.param}")


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def check_rows(apply, rng):
    """apply: indices of rows -> their results. Groups of 1 to ROWS, each row alone, shuffled."""
    whole = apply(np.arange(ROWS))
    assert np.isfinite(whole).all()
    for count in range(1, ROWS):
        first = int(rng.integers(0, ROWS - count + 1))
        rows = np.arange(first, first + count)
        assert np.array_equal(apply(rows), whole[rows]), count
    for row in range(ROWS):
        assert np.array_equal(apply(np.array([row])), whole[[row]]), row
    order = rng.permutation(ROWS)
    assert np.array_equal(apply(order), whole[order])


@pytest.mark.parametrize("act", [None, "gelu", "silu", "tanh"])
@pytest.mark.parametrize(("depth", "cols"), [(384, 65), (7, 32), (600, 16), (1, 1)])
def test_a_row_of_linear(cpu, rng, depth, cols, act):
    """Depths on both sides of what is summed at once."""
    x, residual, bias = floats(rng, ROWS, depth), floats(rng, ROWS, cols), floats(rng, cols)
    weight = cpu.pack(floats(rng, cols, depth), "linear", np.float32)
    check_rows(lambda i: cpu.linear(x[i], weight, bias, act=act, residual=residual[i]), rng)
    assert not cpu.composed_calls


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("depth", "cols"), [(384, 33), (7, 16), (600, 1)])
def test_a_row_of_gated_linear(cpu, rng, depth, cols, act):
    x, bias = floats(rng, ROWS, depth), floats(rng, 2 * cols)
    weight = cpu.pack(floats(rng, 2 * cols, depth), "gated", np.float32)
    check_rows(lambda i: cpu.gated_linear(x[i], weight, bias, act=act), rng)
    assert not cpu.composed_calls


@pytest.mark.parametrize("order", ["pre", "sandwich"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("cols", [1, 31, 384, 1025])
def test_a_row_of_add_norm(cpu, rng, cols, kind, order):
    x, residual = floats(rng, ROWS, cols), floats(rng, ROWS, cols)
    bias = floats(rng, cols) if kind == "layer" else None
    norm = NormWeights(floats(rng, cols), bias, 1e-5, kind)
    check_rows(lambda i: cpu.add_norm(x[i], residual[i], norm, order=order), rng)


def test_a_row_of_embed(cpu, rng):
    tables = [EmbeddingTable(floats(rng, 9, 33), name) for name in ("input_ids", "position_ids")]
    norm = NormWeights(floats(rng, 33), floats(rng, 33), 1e-12)
    ids, positions = rng.integers(0, 9, (2, ROWS)).astype(np.int32)

    def apply(rows):
        one = Encoding(ids[rows], position_ids=positions[rows])
        return cpu.embed(cpu.prepare_batch_unpadded([one]), tables, norm)

    check_rows(apply, rng)


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_in_pool(cpu, rng, mode):
    tokens = [floats(rng, n, 33) for n in rng.integers(1, 50, ROWS)]

    def apply(rows):
        picked = [tokens[row] for row in rows]
        return cpu.pool(np.concatenate(picked), batch_of(cpu, [len(t) for t in picked]), [mode])

    check_rows(apply, rng)


@pytest.mark.parametrize("dim", [32, 33])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_sequence_among_others_in_attention(cpu, rng, name, dim):
    """One of 1 and of 300 tokens too; alone, last to first, and with a longer one beside it."""
    lengths = (33, 1, 65, 16, 14, 300)
    case = Case(rng, F32, lengths, dim, **OPTIONS[name])
    starts = np.cumsum([0, *lengths])

    def attend(rows):
        part = Case(rng, F32, tuple(lengths[row] for row in rows), dim, **OPTIONS[name])
        part.qkv = np.concatenate([case.qkv[starts[row] : starts[row + 1]] for row in rows])
        part.qk_norm, part.bias, part.rope = case.qk_norm, case.bias, case.rope
        if OPTIONS[name].get("by_sequence"):
            part.rope = tuple(table[list(rows)] for table in case.rope)
        found = part.run(cpu)
        return dict(zip(rows, np.split(found, np.cumsum(part.lengths)[:-1])))

    together = attend(range(len(lengths)))
    groups = [(row,) for row in range(len(lengths))] + [(5, 4, 3, 2, 1, 0), (2, 0), (1, 5), (3, 1)]
    for rows in groups:
        for row, found in attend(rows).items():
            assert np.array_equal(found, together[row]), (rows, row)
    assert not cpu.composed_calls


def test_a_query_in_a_longer_attention(cpu, rng):
    """With causality, what follows a token does not change its bits."""
    qkv = floats(rng, 200, 3 * 2 * 32)
    whole = cpu.attention(qkv, batch_of(cpu, [200]), num_heads=2, causal=True)
    for length in (1, 13, 14, 15, 31, 32, 33, 64, 199):
        got = cpu.attention(qkv[:length], batch_of(cpu, [length]), num_heads=2, causal=True)
        assert np.array_equal(got, whole[:length]), length
