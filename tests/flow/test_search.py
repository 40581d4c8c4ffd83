"""Search: the same rows as scoring everything in float64, in a stable order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from shard_builder import commit, make_table, reopen, write_shard

from pipeline import index as index_module
from pipeline.errors import UsageError
from pipeline.index import Metric
from pipeline.store import Store


def brute_force(
    vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], metric: str
) -> npt.NDArray[np.float64]:
    """Scores in float64: (rows,)."""
    x, q = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "euclidean":
        return np.asarray(-np.sqrt(((x - q) ** 2).sum(1)))
    scale = np.linalg.norm(x, axis=1) * np.linalg.norm(q) if metric == "cosine" else 1.0
    return np.asarray((x @ q) / scale)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("vector_type", ["float32", "float16"])
def test_search_is_exact(
    store: Store, metric: Metric, vector_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 100)
    starts = {"s1": range(1), "s2": range(1000, 1257), "s3": range(5000, 6023)}
    tables = [make_table(ids, 33, vector_type=vector_type) for ids in starts.values()]
    commit(store, [write_shard(store, key, t) for key, t in zip(starts, tables, strict=True)])
    index = reopen(store)
    flat = pa.concat_tables(tables)["vector"].combine_chunks().flatten().to_numpy()
    vectors = flat.reshape(-1, 33).astype(np.float32)
    position = {i: at for at, i in enumerate(i for ids in starts.values() for i in ids)}
    for seed, k in ((1, 1), (2, 10), (3, 129), (4, 5000)):
        query = np.random.default_rng(seed).standard_normal(33).astype(np.float32)
        want = brute_force(vectors, query, metric)
        best = np.sort(want)[::-1][:k]
        hits = index.search(query, k, metric=metric)
        found = [position[int(str(hit.row["id"]))] for hit in hits]
        assert len(set(found)) == len(best)
        np.testing.assert_allclose(want[found], best, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose([hit.score for hit in hits], best, rtol=1e-5, atol=1e-5)
        assert "vector" not in hits[0].row
        assert hits[0].row["lang"] in ("en", "de")


def test_equally_near_rows_come_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 3)
    receipts = []
    for key, ids in (("s1", range(7)), ("s2", range(100, 105))):
        table = make_table(ids, 2)
        values = pa.array(np.tile(np.array([1, 0], np.float32), len(ids)))
        vector = pa.FixedSizeListArray.from_arrays(values, 2)
        at = table.schema.get_field_index("vector")
        receipts.append(
            write_shard(store, key, table.set_column(at, table.schema.field(at), vector))
        )
    commit(store, receipts)
    hits = reopen(store).search(np.array([2, 1], np.float32), 9, metric="dot")
    assert [hit.row["id"] for hit in hits] == [*range(7), 100, 101]


def test_bad_queries_are_refused(filled: Store) -> None:
    index = reopen(filled)
    good = np.ones(8, np.float32)
    with pytest.raises(UsageError, match=r"of shape \(8,\), got shape \(7,\)"):
        index.search(good[:7], 1)
    with pytest.raises(UsageError, match="finite"):
        index.search(good * np.inf, 1)
    with pytest.raises(UsageError, match="k should be at least 1"):
        index.search(good, 0)
    with pytest.raises(UsageError, match="unknown metric 'l1'"):
        index.search(good, 1, metric="l1")  # type: ignore[arg-type]
