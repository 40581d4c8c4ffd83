"""What a run tells while it goes and when it is done, on a clock of the test's own."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from run_builder import do_shards, file_of, files, run_whole, small_shards, stand_in_for_ray

from pipeline import report as report_module
from pipeline.cli import main
from pipeline.report import LINE_SECONDS, RunReport, duration
from pipeline.run import prepare
from pipeline.shard_work import Payload
from pipeline.sink import DeadLetter

LETTER = DeadLetter(0, 1, "rows.jsonl:1", "null text")


@pytest.fixture(autouse=True)
def embedded(monkeypatch):
    return stand_in_for_ray(monkeypatch)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(report_module, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture
def prepared(tmp_path):
    """A run of 23 rows in five shards."""
    return prepare(small_shards(tmp_path))


def written(task, *, tokens=100, letters=0, **seconds):
    """A shard as it comes from the last stage."""
    return Payload(
        task.work_key,
        [],
        letters=[LETTER] * letters,
        seconds=seconds,
        rows=task.shard.rows - letters,
        tokens=tokens,
    )


def terminal(monkeypatch):
    """Have the report see a terminal; what it writes there."""
    text = io.StringIO()

    def console(*, stderr):
        assert stderr
        return Console(file=text, force_terminal=True, width=160)

    monkeypatch.setattr(report_module, "Console", console)
    return text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (7.2, "7 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (4800, "1 h 20 min"),
        (100 * 3600 + 59 * 60 + 59, "100 h 59 min"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds, said):
    assert duration(seconds) == said


# ---- the plan


def test_the_plan_of_a_first_run(prepared):
    assert RunReport(prepared).plan_line() == (
        "5 shards, 23 rows in 1 files: 0 kept from version 0, 0 done by a broken run, "
        "5 to embed, 0 dropped"
    )


def test_the_plan_of_a_run_that_has_everything_before_it(tmp_path):
    source = {"uri": (files(tmp_path, "abc"),)}
    config = small_shards(tmp_path, None, source=source)
    run_whole(config)
    (tmp_path / "corpus" / "a.jsonl").unlink()
    files(tmp_path, "de")
    do_shards(config, 1)
    assert RunReport(prepare(config)).plan_line() == (
        "4 shards, 16 rows in 4 files: 2 kept from version 1, 1 done by a broken run, "
        "1 to embed, 1 dropped"
    )


# ---- progress


def test_progress_counts_shards_rows_rates_letters_and_the_time_left(prepared, clock):
    report = RunReport(prepared)
    assert report.progress_line() == (
        "0/5 shards  0 rows  0 tokens  0 rows/s  0 tokens/s  0 dead letters  unknown left"
    )
    clock.seconds += 4
    report.add(written(prepared.todo[0], tokens=2000))
    report.add(written(prepared.todo[1], tokens=4000, letters=2))
    assert report.progress_line() == (
        "2/5 shards  8 rows  6,000 tokens  2 rows/s  1,500 tokens/s  2 dead letters  5 s left"
    )
    for task in prepared.todo[2:]:
        report.add(written(task))
    assert report.progress_line().startswith("5/5 shards  21 rows ")
    assert report.progress_line().endswith("  0 s left")


def test_time_left_goes_by_the_rows_that_were_planned(prepared, clock):
    """A shard of the last three rows, all bad, is 3 of 23 planned rows."""
    report = RunReport(prepared)
    clock.seconds += 30
    report.add(written(prepared.todo[-1], letters=3))
    assert report.progress_line().endswith("  3 dead letters  3 min 20 s left")


def test_failed_shards_are_not_counted(prepared, clock):
    report = RunReport(prepared)
    clock.seconds += 2 * LINE_SECONDS
    before = report.progress_line()
    report.add(Payload(prepared.todo[0].work_key, [], failure="read: gone"))
    assert report.progress_line() == before


def test_elsewhere_than_on_a_terminal_lines_keep_their_distance(prepared, clock, capsys):
    report = RunReport(prepared)
    said = []
    with report.following():
        for task, seconds in zip(prepared.todo, (0.0, 9.9, 0.2, 9.7, 0.3), strict=True):
            clock.seconds += seconds
            report.add(written(task))
            said.append(capsys.readouterr())
    assert [bool(text.err) for text in said] == [False, False, True, False, True]
    assert [text.out for text in said] == [""] * 5
    assert said[2].err.startswith("3/5 shards  15 rows ")
    assert said[2].err.count("\n") == 1
    assert LINE_SECONDS == 10


def test_on_a_terminal_a_bar_shows_the_same_line(prepared, clock, monkeypatch, capsys):
    text = terminal(monkeypatch)
    report = RunReport(prepared)
    with report.following():
        for task in prepared.todo:
            clock.seconds += LINE_SECONDS
            report.add(written(task))
        last = report.progress_line()
    assert last in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through_the_bar(prepared, monkeypatch):
    terminal(monkeypatch)
    with pytest.raises(KeyError), RunReport(prepared).following():
        raise KeyError


# ---- the end


def test_the_end_says_what_was_committed_and_where_the_time_went(tmp_path, clock):
    config = small_shards(tmp_path)
    prepared = prepare(config)
    version = run_whole(config)
    report = RunReport(prepared)
    clock.seconds += 65
    for task in prepared.todo:
        report.add(written(task, read=0.1, embed=1.5, write=0.4))
    assert list(report.done_lines(version)) == [
        f"committed version 1: 23 rows in 5 parts, {version.tokens:,} tokens, 0 dead letters",
        "embedded 23 rows in 1 min 5 s, start of Ray included; "
        "worker time: read 5.0%, embed 75.0%, write 20.0%",
    ]


def test_the_end_of_a_run_that_embedded_nothing_says_what_was_committed(tmp_path):
    config = small_shards(tmp_path)
    do_shards(config, 5)
    lines = list(RunReport(prepare(config)).done_lines(run_whole(config)))
    assert [line.partition(":")[0] for line in lines] == ["committed version 1"]


# ---- the commands


def test_the_commands_tell_what_is_planned_done_and_unchanged(tmp_path, capsys):
    path = file_of(small_shards(tmp_path, source={"limit": 12}))
    assert main(["plan", path]) == 0
    planned = capsys.readouterr().out.splitlines()
    assert planned[0].startswith("source.limit: only the first 12 rows; 3 shards, 12 rows in 1 ")
    assert [line.split()[0] for line in planned[1:4]] == ["embed"] * 3
    assert planned[4].startswith("about ")
    assert main(["run", path]) == 0
    assert capsys.readouterr().out.startswith("committed version 1: 12 rows in 3 parts")
    assert main(["run", path]) == 0
    assert capsys.readouterr().out == (
        "nothing to do: version 1 holds all 12 rows of this corpus\n"
    )
    assert main(["plan", path]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["keep"] * 3
