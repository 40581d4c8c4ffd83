"""Rows that cannot be embedded: dead letters, guards, and what a resume finds."""

from __future__ import annotations

import pytest

from pipeline import Embedder
from tests.e2e.runs import Job, Row, check_rows, check_sound, rows, texts_of, write_lines

BAD_LINES: dict[bytes, str] = {
    b'{"id": "b1", "text": null}': "null text",
    b'{"id": "b2"}': "missing key 'text'",
    b'{"id": "b3", "text": 7}': "text is a number, not a string",
    b'{"id": null, "text": "river"}': "null id",
    b'{"id": "b5", "text": "caf\xe9"}': "UTF-8",
    b'{"id": "b6", "text": ': "JSON",
    b'["b7", "river"]': "object",
}


@pytest.fixture
def good(job: Job) -> list[Row]:
    """Three files of 20 good rows; the second begins with seven bad ones."""
    made = rows(range(60))
    write_lines(job.corpus / "a.jsonl", made[:20])
    write_lines(job.corpus / "b.jsonl", [*BAD_LINES, *made[20:40]])
    write_lines(job.corpus / "c.jsonl", made[40:])
    job.set("source", rows_per_shard=27)
    return made


def test_bad_rows_become_dead_letters_that_are_counted_and_listed(
    job: Job, good: list[Row], embedder: Embedder
) -> None:
    job.set("failure", max_bad_fraction=0.5)
    result = job.run()
    assert result.code == 0, result.err
    assert "60 rows in 3 parts" in result.out
    assert f", {len(BAD_LINES)} dead letters" in result.out
    check_rows(job.table(), texts_of(good), embedder)
    check_sound(job)
    status = job.read("status").out
    letters = [line.split()[2:] for line in status.splitlines() if "dead letter  " in line]
    assert [words[0] for words in letters] == [f"b.jsonl:{n}" for n in range(1, 8)]
    for words, reason in zip(letters, BAD_LINES.values()):
        assert reason in " ".join(words)
    assert job.run().out.startswith("nothing to do: ")


def test_too_many_bad_rows_stop_the_run_and_a_resume_uses_what_is_done(
    job: Job, good: list[Row], embedder: Embedder
) -> None:
    stopped = job.run()
    assert stopped.code == 3
    assert "failure.max_bad_fraction: 7 of 67 rows are bad, more than 1.00%" in stopped.error
    assert "b.jsonl:7: " in stopped.error
    assert "kept for the next run" in stopped.error
    assert job.versions() == []
    done = job.receipts()
    assert 1 <= len(done) <= 3
    again = job.run()
    assert again.code == 3
    assert job.versions() == []
    job.set("failure", max_bad_fraction=0.2)
    resumed = job.run()
    assert resumed.code == 0, resumed.err
    assert f"{len(done)} done by a broken run, {3 - len(done)} to embed" in resumed.err
    check_rows(job.table(), texts_of(good), embedder)


def test_a_bad_row_stops_the_run_at_its_line_where_the_config_says_so(
    job: Job, good: list[Row]
) -> None:
    job.set("failure", bad_rows="fail", max_bad_fraction=1.0)
    result = job.run()
    assert result.code == 3
    assert "failure.bad_rows is 'fail': b.jsonl:1 (id 'b1'): null text" in result.error
    assert job.versions() == []


def test_a_corpus_of_nothing_but_bad_rows_is_a_version_without_rows(job: Job) -> None:
    write_lines(job.corpus / "a.jsonl", [{"id": "x", "text": None}, {"id": "y", "text": None}])
    job.set("failure", max_bad_fraction=1.0)
    result = job.run()
    assert result.code == 0, result.err
    assert "committed version 1: 0 rows in 0 parts, 0 tokens, 2 dead letters" in result.out
    assert job.read("verify").code == 0
    assert job.read("search", "river").code == 0


def test_dead_letters_of_kept_shards_stay_counted_and_guarded(job: Job, good: list[Row]) -> None:
    job.set("failure", max_bad_fraction=0.11)
    assert job.run().code == 0
    write_lines(job.corpus / "d.jsonl", [b"not json", b"not json", *rows(range(60, 68))])
    stopped = job.run()
    assert stopped.code == 3
    assert "failure.max_bad_fraction: 9 of 77 rows are bad, more than 11.00%" in stopped.error
    job.set("failure", max_bad_fraction=0.12)
    assert job.run().code == 0
    head = job.index().version
    assert (head.version, head.rows, head.dead_letters) == (2, 68, 9)
    assert len(list(job.index().dead_letters())) == 9
