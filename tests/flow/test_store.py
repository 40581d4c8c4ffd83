"""Store: the same behaviour on a local folder and on S3, and errors with names."""

from __future__ import annotations

import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError

from pipeline import backends
from pipeline.errors import UsageError
from pipeline.store import ObjectNotFoundError, Store, StoreError


def test_objects_come_back_as_they_were_put(store: Store) -> None:
    odd = "a/b c%20ü#1?.txt"
    for key, data in [(odd, b"odd"), ("a/empty", b""), ("ab", b"x"), ("a/big", os.urandom(70001))]:
        store.put(key, data)
        assert store.get(key) == data
        info = store.head(key)
        assert info is not None
        assert (info.key, info.size) == (key, len(data))
    assert [o.key for o in store.list()] == sorted([odd, "a/empty", "ab", "a/big"])
    assert [o.key for o in store.list("a")] == sorted([odd, "a/empty", "a/big"])
    assert list(store.list("nothing")) == []
    assert len(store.peek(2)) == 2
    assert store.head("a") is None
    assert store.head("a/none") is None
    with pytest.raises(ObjectNotFoundError, match="a/none"):
        store.get("a/none")


def test_large_objects_go_up_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_MULTIPART_BYTES", 1 << 20)
    data = os.urandom(11 << 20)
    store.put("k", data)
    assert store.get("k") == data


def test_ranges(store: Store) -> None:
    store.put("k", b"0123456789")
    assert store.get_range("k", 2, 5) == b"234"
    assert store.get_range("k", 8, 99) == b"89"
    assert store.get_range("k", 3, 3) == b""
    with pytest.raises(StoreError):
        store.get_range("k", 10, 11)
    with pytest.raises(ValueError, match="start <= end"):
        store.get_range("k", 5, 4)


def test_delete_is_quiet_about_what_is_gone(store: Store) -> None:
    store.put("k", b"x")
    store.delete("k")
    store.delete("k")
    assert store.head("k") is None


def test_etag_changes_with_the_content(store: Store) -> None:
    etags = set()
    for data in (b"one", b"two", b"longer"):
        store.put("k", data)
        info = store.head("k")
        assert info is not None
        assert info == next(store.list())
        etags.add(info.etag)
    assert len(etags) == 3


def test_a_store_travels_by_pickle(store: Store) -> None:
    store.put("k", b"x")
    assert pickle.loads(pickle.dumps(store)).get("k") == b"x"


def test_first_create_wins(store: Store) -> None:
    assert store.put_if_absent("k", b"first")
    assert not store.put_if_absent("k", b"other")
    assert store.put_if_absent("k", b"first"), "the same bytes are one's own earlier create"
    assert store.get("k") == b"first"


def test_races_have_exactly_one_winner(store: Store) -> None:
    writers, rounds = 8, 20

    def race(at: int) -> None:
        gate = threading.Barrier(writers)

        def create(writer: int) -> bool:
            gate.wait()
            return store.put_if_absent(f"races/{at}", b"writer %d" % writer)

        with ThreadPoolExecutor(writers) as pool:
            won = list(pool.map(create, range(writers)))
        assert won.count(True) == 1
        assert store.get(f"races/{at}") == b"writer %d" % won.index(True)

    with ThreadPoolExecutor(rounds) as pool:  # at once: the S3 server lets losers wait a second
        list(pool.map(race, range(rounds)))
    assert len(list(store.list())) == rounds, "no temporary files are left or listed"


@pytest.mark.parametrize("error", [AlreadyExistsError("exists"), GenericError("reset")])
def test_a_create_whose_answer_was_lost_is_a_success(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    put, link = obstore.put, os.link

    def put_and_lose_the_answer(*args: Any, **options: Any) -> None:
        put(*args, **options)
        raise error

    def link_and_lose_the_answer(*args: Any) -> None:
        link(*args)
        raise FileExistsError(17, "exists") if isinstance(error, AlreadyExistsError) else OSError(5)

    store.put("theirs", b"theirs")
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", put_and_lose_the_answer)
        patch.setattr(os, "link", link_and_lose_the_answer)
        assert store.put_if_absent("mine", b"mine")
        assert not store.put_if_absent("theirs", b"mine")
    assert store.get("mine") == b"mine"
    assert store.get("theirs") == b"theirs"


def test_a_create_that_failed_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise GenericError("reset")

    def fail_locally(*args: Any) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(obstore, "put", fail)
    monkeypatch.setattr(os, "link", fail_locally)
    with pytest.raises(StoreError, match=r"create .*mine: .*(reset|no space left)"):
        store.put_if_absent("mine", b"mine")


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/./b", "", "a/"])
def test_keys_stay_inside_the_store(store: Store, key: str) -> None:
    with pytest.raises(StoreError, match="bad key"):
        store.put(key, b"x")


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open("place/")
    assert list(store.list()) == []
    assert not Path("place").exists()
    store.put("a/b", b"x")
    assert store.uri_of("a/b") == str(tmp_path / "place/a/b")
    assert Store.open(f"file://{tmp_path}/place").get("a/b") == b"x"
    monkeypatch.chdir("/")
    assert store.get("a/b") == b"x", "a relative path was resolved when the store was opened"


def test_local_listing_sees_what_obstore_hides_and_names_bad_links(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "place"))
    store.put("a/b#1", b"x")
    store.put("other/c", b"y")
    (tmp_path / "place/linked").symlink_to(tmp_path / "place/other")
    assert [o.key for o in store.list()] == ["a/b#1", "linked/c", "other/c"]
    (tmp_path / "place/a/up").symlink_to(tmp_path / "place")
    with pytest.raises(StoreError, match="links back"):
        store.list()
    (tmp_path / "place/a/up").unlink()
    (tmp_path / "place/a/broken").symlink_to(tmp_path / "nothing")
    with pytest.raises(StoreError, match="broken is a link to nothing"):
        store.list()


def test_a_local_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(str(tmp_path))
    store.put("k", b"old")

    def fail(descriptor: int) -> None:
        raise OSError(5, "disk error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=r"put .*disk error"):
        store.put("k", b"new")
    assert os.listdir(tmp_path) == ["k"]
    assert store.get("k") == b"old"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ftp://x/y", "unknown scheme 'ftp'"),
        ("s3://", "no bucket"),
        ("file://x/y", "three slashes"),
        ("", "needs a path"),
    ],
)
def test_unusable_uris(uri: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Store.open(uri)


def test_options_that_do_not_apply_are_refused() -> None:
    with pytest.raises(UsageError, match="takes no region"):
        Store.open("gs://bucket/x", region="eu-west-1")
    with pytest.raises(UsageError, match="takes no endpoint"):
        Store.open("folder", endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize("uri", ["gs://bucket/folder", "az://container/folder"])
def test_other_clouds_can_be_opened(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store = Store.open(uri, endpoint="http://127.0.0.1:1")
    assert pickle.loads(pickle.dumps(store)).uri_of("k") == f"{uri}/k"


def test_wrong_credentials_are_named_at_once(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = Store.open("s3://vec/x", endpoint=s3_endpoint)
    start = time.monotonic()
    for call in (
        lambda: store.put("k", b"x"),
        lambda: store.put_if_absent("k", b"x"),
        lambda: store.get("k"),
        lambda: store.list(),
        lambda: store.head("k"),
    ):
        with pytest.raises(StoreError, match=r"s3://vec/x.*: no permission"):
            call()
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("folder", ["with space", "a#b", "a%20b", "a?b=c", "ü"])
def test_odd_folder_names_are_kept(s3_endpoint: str, folder: str) -> None:
    Store.open(f"s3://vec/odd/{folder}", endpoint=s3_endpoint).put("k", b"x")
    keys = [info.key for info in Store.open("s3://vec/odd", endpoint=s3_endpoint).list()]
    assert f"{folder}/k" in keys


def test_a_bucket_that_is_not_there_is_named(s3_endpoint: str) -> None:
    store = Store.open("s3://nobody/x", endpoint=s3_endpoint)
    for call in (lambda: store.put("k", b"x"), lambda: store.get("k"), lambda: store.list()):
        with pytest.raises(StoreError, match=r"s3://nobody/x.*: no such bucket"):
            call()


def test_an_endpoint_that_does_not_answer_is_named_in_bounded_time(s3_endpoint: str) -> None:
    store = Store.open("s3://vec/x", endpoint="http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(StoreError, match="put s3://vec/x/k: the endpoint cannot be reached"):
        store.put("k", b"x")
    assert time.monotonic() - start < 30


def test_the_endpoint_of_the_environment_travels(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    store = Store.open("s3://vec/environment")
    store.put("k", b"x")
    data = pickle.dumps(store)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert pickle.loads(data).get("k") == b"x"
