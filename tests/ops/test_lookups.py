"""Embedding look-ups: rows of tables by id."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import Encoding, ShapeError
from drivers.types import EmbeddingTable
from tests import oracle
from tests.ops.contract import check_op, integers, nans

TABLES = [(1, 1, 1), (7, 31, 33), (1023, 7, 31), (33, 1025, 5)]  # rows, width, ids


@pytest.mark.parametrize(("rows", "width", "count"), TABLES)
def test_embedding_lookup_copies_rows_exactly(driver, rng, dtype, rows, width, count):
    table = rng.standard_normal((rows, width)).astype(dtype)
    ids = rng.integers(0, rows, count).astype(np.int32)
    ids[0], ids[-1] = rows - 1, 0
    check_op(driver, "embedding_lookup", [ids, table], oracle.wide(table)[ids], 0.0, dtype=dtype)


@pytest.mark.parametrize(("rows", "width", "count"), TABLES)
def test_add_embeddings_matches_oracle(driver, rng, dtype, rows, width, count):
    table = rng.standard_normal((rows, width)).astype(dtype)
    ids = rng.integers(0, rows, count).astype(np.int32)
    hidden = rng.standard_normal((count, width)).astype(dtype)
    want = oracle.wide(hidden) + oracle.wide(table)[ids]
    budget = oracle.error_budget(want, dtype)
    check_op(
        driver, "add_embeddings", [hidden, table, ids], want, budget, dtype=dtype, may_alias=[0]
    )


def test_no_ids_give_no_rows(driver, dtype):
    got = driver.embedding_lookup(integers(driver, []), driver.alloc_zeros((5, 7), dtype))
    assert got.shape == (0, 7)


def test_a_look_up_does_not_touch_the_rows_beside_its_own(driver, dtype):
    table = np.full((5, 31), np.nan, dtype)
    table[2] = 3
    ids = integers(driver, [2, 2])
    assert (driver.to_host(driver.embedding_lookup(ids, driver.from_host(table))) == 3).all()
    hidden = driver.from_host(np.ones((2, 31), dtype))
    assert (driver.to_host(driver.add_embeddings(hidden, driver.from_host(table), ids)) == 4).all()


@pytest.mark.parametrize("bad", [31, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("op", ["embedding_lookup", "add_embeddings"])
def test_an_id_outside_the_table_is_named_with_the_table_size(driver, dtype, op, bad):
    ids = integers(driver, [0, 30, bad, 5])
    table = driver.alloc_zeros((31, 7), dtype)
    out = nans(driver, (4, 7), dtype)
    inputs = (ids, table) if op == "embedding_lookup" else (nans(driver, (4, 7), dtype), table, ids)
    message = rf"{op}: id {bad} at position 2 .*31 rows"
    with pytest.raises(ShapeError, match=message):
        getattr(driver, op)(*inputs, out=out)
    assert np.isnan(driver.to_host(out)).all()


def test_embed_names_the_id_outside_any_of_its_tables(driver, dtype):
    rows = [Encoding(np.array([0, 3], np.int32), np.array([0, 2], np.int32))]
    batch = driver.prepare_batch_unpadded(rows)
    words, types = driver.alloc_zeros((4, 7), dtype), driver.alloc_zeros((2, 7), dtype)
    tables = [EmbeddingTable(words, "input_ids"), EmbeddingTable(types, "token_type_ids")]
    with pytest.raises(ShapeError, match=r"id 2 at position 1 .*2 rows"):
        driver.embed(batch, tables)
