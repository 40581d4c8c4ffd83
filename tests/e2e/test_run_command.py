"""`rayvec run` as a user starts it: a process, a corpus of files, and a committed index."""

from __future__ import annotations

import re

import numpy as np

from pipeline import Embedder
from tests.e2e.runs import NOWHERE, Job, Result, Row, check_rows, check_sound, is_ours, texts_of


def test_every_row_is_there_once_with_the_vector_of_its_own_text(
    finished: tuple[Job, Result], corpus_rows: list[Row], embedder: Embedder
) -> None:
    job, result = finished
    assert result.code == 0, result.err
    check_rows(job.table(), texts_of(corpus_rows), embedder)
    check_sound(job)


def test_the_parts_say_what_was_embedded(
    finished: tuple[Job, Result], corpus_rows: list[Row], embedder: Embedder
) -> None:
    job, _ = finished
    table = job.table().sort_by("id")
    assert table.column_names == ["id", "vector", "n_tokens", "truncated", "content_hash"]
    texts = texts_of(corpus_rows)
    want = embedder.embed([texts[id] for id in table["id"].to_pylist()])
    np.testing.assert_array_equal(table["n_tokens"].to_numpy(), want.tokens)
    assert table["truncated"].to_pylist() == want.truncated.tolist()
    head = job.index().version
    assert (head.version, head.rows, head.parts, head.dim) == (1, 1200, 40, 32)
    assert head.tokens == want.tokens.sum()
    assert len(job.receipts()) == 40


def test_the_command_says_what_there_is_and_what_was_committed(
    finished: tuple[Job, Result],
) -> None:
    _, result = finished
    assert result.err.splitlines()[0] == (
        "40 shards, 1,200 rows in 20 files: 0 kept from version 0, 0 done by a broken run, "
        "40 to embed, 0 dropped"
    )
    committed, spent = result.out.splitlines()
    assert re.fullmatch(
        r"committed version 1: 1,200 rows in 40 parts, [\d,]+ tokens, 0 dead letters", committed
    )
    assert re.fullmatch(
        r"embedded 1,200 rows in \d+ s, start of Ray included; "
        r"worker time: read [\d.]+%, embed [\d.]+%, write [\d.]+%",
        spent,
    )


def test_standard_error_holds_the_plan_and_progress_and_nothing_of_ray(
    finished: tuple[Job, Result],
) -> None:
    _, result = finished
    assert [line for line in result.err.splitlines() if not is_ours(line)] == []


def test_an_unchanged_corpus_is_nothing_to_do_and_needs_no_ray(
    finished: tuple[Job, Result],
) -> None:
    job, _ = finished
    before = job.stored()
    again = job.run_process(address=NOWHERE)
    assert again.code == 0, again.err
    assert again.out == "nothing to do: version 1 holds all 1,200 rows of this corpus\n"
    assert job.stored() == before
