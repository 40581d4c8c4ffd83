"""Long texts through a shard: what they cost in memory grows with the text, not with its square."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.embedder import open_configured
from pipeline.run import prepare
from pipeline.shard_work import ShardEmbedder, ShardReader
from tests.e2e.runs import Job, words, write_lines

TEXT_WORDS = 40_000
MOST_BYTES = 100 << 20


@pytest.fixture
def arrow_memory():
    """A pool that counts from nothing what Arrow allocates in a test."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def test_chunks_of_a_long_text_do_not_carry_all_of_it(
    job: Job, arrow_memory: pa.MemoryPool
) -> None:
    text = words(TEXT_WORDS, 1)
    write_lines(job.corpus / "a.jsonl", [{"id": "long", "text": text}])
    job.set("chunking", max_tokens=30)
    run = prepare(job.config())
    payload = ShardReader(run.config)(run.todo[0])
    with open_configured(run.config, driver="numpy", dtype="float32") as embedder:
        done = ShardEmbedder(run.config, embedder)(payload)
    assert done.failure is None
    assert done.rows >= TEXT_WORDS / 30
    assert arrow_memory.max_memory() < MOST_BYTES
