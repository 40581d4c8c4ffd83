"""An index or a source that is not what it was: named, exit 1, and nothing is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import RayvecError
from pipeline.run import commit, execute, prepare
from pipeline.sink import Receipt
from tests.e2e.runs import Job, Result, Row, all_receipts, rows, write_lines


@pytest.fixture
def old(finished: tuple[Job, Result], tmp_path: Path) -> Job:
    """A copy of the finished job."""
    return finished[0].copy(tmp_path)


@pytest.fixture(scope="module")
def broken_off(ray_address: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose three shards are embedded and not committed. Not to be changed."""
    job = Job(tmp_path_factory.mktemp("broken_off"), tiny_model, ray_address)
    write_lines(job.corpus / "a.jsonl", rows(range(60)))
    job.set("source", rows_per_shard=20)
    for _ in execute(prepare(job.config())):
        pass
    return job


@pytest.fixture
def half_done(broken_off: Job, tmp_path: Path) -> Job:
    """A copy of the job that was broken off."""
    return broken_off.copy(tmp_path)


def first_part(job: Job) -> tuple[Receipt, Path]:
    receipt = all_receipts(job)[0]
    return receipt, Path(job.sink) / str(receipt.part)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def check_refused(job: Job, *said: str, versions: list[int]) -> None:
    result = job.run()
    assert result.code == 1, result
    for word in said:
        assert word in result.error
    assert job.versions() == versions


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_damaged_part_of_a_broken_run_is_not_committed(half_done: Job, damage) -> None:
    receipt, path = first_part(half_done)
    damage(path)
    check_refused(half_done, str(receipt.part), versions=[])


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_damaged_part_of_a_version_fails_its_verification(old: Job, damage) -> None:
    receipt, path = first_part(old)
    damage(path)
    result = old.read("verify")
    assert result.code == 1
    assert str(receipt.part) in result.out
    assert "version 1 is damaged" in result.error


def without_a_file(job: Job) -> None:
    """Shrink the corpus, so that a new version is due that needs no embedding."""
    (job.corpus / "19.jsonl").unlink()


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_damaged_part_of_the_last_version_is_not_carried_into_the_next(old: Job, damage) -> None:
    first = old.index().parts()[0]
    assert "19.jsonl" not in str(first.source)
    damage(Path(old.sink) / str(first.part))
    without_a_file(old)
    check_refused(old, str(first.part), versions=[1])


def test_a_head_edited_by_hand_is_named(old: Job) -> None:
    head = Path(old.sink) / "heads" / "00000001.json"
    head.write_text(head.read_text().replace('"rows": 1200', '"rows": 1300'))
    check_refused(old, str(head), "edited or damaged", versions=[1])
    assert "edited or damaged" in old.read("status").error


def test_a_head_that_is_no_json_is_named(old: Job) -> None:
    head = Path(old.sink) / "heads" / "00000001.json"
    cut(head)
    check_refused(old, str(head), versions=[1])


def test_a_damaged_list_of_parts_is_named(old: Job) -> None:
    (manifest,) = (Path(old.sink) / "manifests").glob("*.parquet")
    flip(manifest)
    check_refused(old, manifest.name, "damaged", versions=[1])


def test_a_damaged_receipt_is_named(half_done: Job) -> None:
    receipt = next((Path(half_done.sink) / "receipts").rglob("*.json"))
    cut(receipt)
    check_refused(half_done, str(receipt), versions=[])


@pytest.mark.parametrize(
    ("change", "said"),
    [(("model", {"dim": 16}), "dim is 32"), (("sink", {"vector_type": "float16"}), "vector_type")],
    ids=["dim", "vector_type"],
)
def test_another_index_in_the_same_place_is_named(
    old: Job, change: tuple[str, dict[str, object]], said: str
) -> None:
    before = old.stored()
    section, keys = change
    old.set(section, **keys)
    check_refused(old, old.sink, "holds another index", said, versions=[1])
    assert old.stored() == before


def test_ids_of_another_type_are_another_index(old: Job) -> None:
    write_lines(old.corpus / "00.jsonl", rows(range(3)))
    check_refused(old, "holds another index", "id_type", versions=[1])


def test_an_index_that_lost_its_identity_is_named(old: Job) -> None:
    (Path(old.sink) / "index.json").unlink()
    without_a_file(old)
    check_refused(old, "index.json", "missing", versions=[1])


def test_damaged_caches_of_a_plan_are_made_again(old: Job, corpus_rows: list[Row]) -> None:
    for path in [*(Path(old.sink) / "scans").iterdir(), *(Path(old.sink) / "ids").iterdir()]:
        path.write_bytes(b"\x00\x01\x02")
    without_a_file(old)
    result = old.run()
    assert result.code == 0, result.err
    assert sorted(old.table()["id"].to_pylist()) == sorted(
        row["id"] for file in range(19) for row in corpus_rows[file::20]
    )


@pytest.mark.parametrize("change", ["rewritten", "longer", "gone"])
def test_a_source_file_that_changes_under_the_run_fails_it_by_name(job: Job, change: str) -> None:
    for name in ("a", "b", "c"):
        write_lines(job.corpus / f"{name}.jsonl", rows(range(ord(name) * 20, ord(name) * 20 + 20)))
    job.set("source", rows_per_shard=20).set("failure", max_shard_retries=0)
    run = prepare(job.config())
    changed = job.corpus / "b.jsonl"
    if change == "gone":
        changed.unlink()
    else:
        write_lines(changed, rows(range(9000, 9020 if change == "rewritten" else 9040)))
    with pytest.raises(RayvecError, match="b.jsonl") as failed:
        list(execute(run))
    assert failed.value.exit_code == 1
    assert "1 of 3 shards failed" in str(failed.value)
    assert len(job.receipts()) == 2
    with pytest.raises(RayvecError, match="neither embedded nor kept"):
        commit(run)
    assert job.versions() == []
