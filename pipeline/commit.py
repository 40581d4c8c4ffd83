"""Commits: claim a place for one kind of index, and create its next version, once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.errors import RayvecError, UsageError
from pipeline.manifest import (
    PartEntry,
    Version,
    fetch,
    head_key,
    read_letters,
    read_version,
    version_numbers,
    write_letters,
    write_parts,
)
from pipeline.records import IndexCorruptError, Record, pretty
from pipeline.sink import DeadLetter, Receipt, utc_now
from pipeline.store import ObjectNotFoundError, Store

IDENTITY_KEY = "index.json"
IDENTITY_FORMAT = 1
_OURS = ("heads", "ids", "manifests", "parts", "receipts", "scans")
_PEEK_OBJECTS = 100
_NAMED = 5
_HEAD_THREADS = 16
_SCALARS = (str, int, float, type(None))


class CommitConflictError(RayvecError):
    """Another run committed since this one planned; nothing was changed."""


def claim(store: Store, identity: Mapping[str, str | int | float | None]) -> None:
    """Make the place `store` the home of an index with `identity`, or find that it is already.

    `identity` is what all versions of one index share: id type, dim, vector type and the like.
    Raises RayvecError where the place holds another index, UsageError where it holds anything that
    is no index.
    """
    stored = pretty({"format": IDENTITY_FORMAT, "identity": dict(identity)})
    found = _identity(store)
    if found is None:
        _refuse_foreign(store)
        if store.put_if_absent(IDENTITY_KEY, stored):
            return
        found = _identity(store)
    for name in dict.fromkeys([*identity, *(found or {})]):
        want, have = identity.get(name), (found or {}).get(name)
        if want != have:
            raise RayvecError(
                f"{store.uri}: holds another index: its {name} is {have!r}, this run's is {want!r}"
            )


def _identity(store: Store) -> dict[str, object] | None:
    try:
        data = store.get(IDENTITY_KEY)
    except ObjectNotFoundError:
        return None
    record = Record.parse(data, store.uri_of(IDENTITY_KEY), format_number=IDENTITY_FORMAT)
    identity = record.mapping("identity", _SCALARS)
    record.done()
    return identity


def _refuse_foreign(store: Store) -> None:
    """Only an empty place can be claimed; names that start with a dot do not count."""
    keys = [info.key for info in store.peek(_PEEK_OBJECTS)]
    keys = [key for key in keys if not key.rpartition("/")[2].startswith(".")]
    if not keys or _identity(store) is not None:
        return
    if all(key.partition("/")[0] in _OURS for key in keys):
        raise IndexCorruptError(f"{store.uri_of(IDENTITY_KEY)}: missing, but {keys[0]} is there")
    raise UsageError(
        f"{store.uri}: not empty and not an index: it holds {_some(keys)}; choose an empty place"
    )


def commit_version(
    store: Store,
    *,
    plan_keys: Sequence[str],
    receipts: Mapping[str, Receipt],
    kept: Mapping[str, PartEntry],
    epoch: int,
    fingerprint: str,
    summary: Mapping[str, object],
    base_version: int,
    unread: Collection[str] = (),
) -> Version:
    """Create version `base_version` + 1, which holds the shards `plan_keys`, in that order.

    Each shard comes from `receipts` (embedded by this run or one it resumed) or from `kept` (an
    entry of `base_version`). `base_version` is the version the plan was compared with, 0 for
    none. `summary` must be JSON values. `unread`: shards whose parts an earlier run wrote and
    nobody has read since; they are read and hashed before the commit. Raises RayvecError where
    receipts and kept parts do not cover the plan exactly or do not fit together, and
    CommitConflictError, naming the winner, where another run committed first.
    """
    _check_coverage(plan_keys, receipts, kept)
    base = _base(store, base_version)
    if base is not None and epoch < base.epoch:
        raise CommitConflictError(
            f"{store.uri}: garbage was collected since this run began: it is of epoch {epoch}, "
            f"version {base.version} of epoch {base.epoch}; plan again"
        )
    if kept and (base is None or base.fingerprint != fingerprint):
        have = "no version" if base is None else f"fingerprint {base.fingerprint}"
        raise RayvecError(
            f"{store.uri}: parts of version {base_version} ({have}) cannot be kept in a version "
            f"with fingerprint {fingerprint}"
        )
    columns, dim, vector_type = _shape(store, receipts.values(), base if kept else None)
    entries = [kept[key] if key in kept else PartEntry.of(receipts[key]) for key in plan_keys]
    _check_parts(store, entries, unread)
    letters = _letters(store, plan_keys, receipts, kept, base)
    head = Version(
        version=base_version + 1,
        epoch=epoch,
        fingerprint=fingerprint,
        created=utc_now(),
        commit_id=uuid.uuid4().hex,
        summary=summary,
        columns=columns,
        dim=dim,
        vector_type=vector_type,
        parts=sum(entry.part is not None for entry in entries),
        rows=sum(entry.rows for entry in entries),
        tokens=sum(entry.tokens for entry in entries),
        dead_letters=sum(entry.dead_letters for entry in entries),
        manifests=write_parts(store, entries),
        dead_letters_file=write_letters(store, letters),
    )
    if len(letters) != head.dead_letters:
        raise IndexCorruptError(
            f"{store.uri}: version {base_version} counts other dead letters than it lists"
        )
    if not store.put_if_absent(head_key(head.version), head.to_json()):
        raise _conflict(store, base_version, head.version)
    return head


def _check_coverage(
    plan_keys: Sequence[str], receipts: Mapping[str, Receipt], kept: Mapping[str, PartEntry]
) -> None:
    planned = set(plan_keys)
    twice = [key for key, count in Counter(plan_keys).items() if count > 1]
    both = [key for key in receipts if key in kept]
    swapped = [key for key, receipt in receipts.items() if receipt.shard_key != key]
    swapped += [key for key, entry in kept.items() if entry.shard_key != key]
    for problem, keys in (
        ("planned twice", twice),
        ("planned, but neither embedded nor kept", planned - receipts.keys() - kept.keys()),
        ("not in the plan", (receipts.keys() | kept.keys()) - planned),
        ("both embedded and kept", both),
        ("named by a key that is not their own", swapped),
    ):
        if keys:
            raise RayvecError(f"commit: {len(keys)} shards are {problem}: {_some(sorted(keys))}")


def _base(store: Store, base_version: int) -> Version | None:
    numbers = version_numbers(store)
    newest = numbers[-1] if numbers else 0
    if newest > base_version:
        raise _conflict(store, base_version, newest)
    if newest < base_version:
        raise RayvecError(f"{store.uri}: there is no version {base_version} to build on")
    return read_version(store, newest) if newest else None


def _conflict(store: Store, base_version: int, winner: int) -> CommitConflictError:
    head = read_version(store, winner)
    return CommitConflictError(
        f"{store.uri}: another run committed version {head.version} first (at {head.created}, "
        f"fingerprint {head.fingerprint}, commit {head.commit_id}); this run was planned on "
        f"version {base_version}: run again, its finished shards are kept"
    )


def _shape(
    store: Store, receipts: Iterable[Receipt], base: Version | None
) -> tuple[dict[str, str], int, str]:
    """Columns, dim and vector type that all shards share."""
    found: tuple[dict[str, str], int, str] | None = None
    source = ""
    if base is not None:
        found, source = (dict(base.columns), base.dim, base.vector_type), f"version {base.version}"
    for receipt in receipts:
        shape = (dict(receipt.columns), receipt.dim, receipt.vector_type)
        if found is None:
            found, source = shape, f"shard {receipt.shard_key}"
        if shape != found or list(shape[0]) != list(found[0]):
            raise RayvecError(
                f"{store.uri}: shard {receipt.shard_key} has the columns {shape[0]}, but {source} "
                f"has {found[0]}; embed everything again to change columns"
            )
    return found or ({}, 0, "")


def _check_parts(store: Store, entries: Iterable[PartEntry], unread: Collection[str]) -> None:
    """The parts of all shards must be there with their size; those of `unread` are read as well."""

    def check(entry: PartEntry) -> None:
        if entry.part is None:
            return
        if entry.shard_key in unread:
            fetch(store, entry.part, entry.size_bytes, entry.sha256)
            return
        info = store.head(entry.part)
        if info is None or info.size != entry.size_bytes:
            have = "missing" if info is None else f"{info.size} bytes"
            raise IndexCorruptError(
                f"{store.uri_of(entry.part)}: {have}; wanted {entry.size_bytes} bytes; "
                "a run with run.mode=full embeds every shard again"
            )

    with ThreadPoolExecutor(_HEAD_THREADS) as pool:
        for _ in pool.map(check, entries):
            pass


def _letters(
    store: Store,
    plan_keys: Sequence[str],
    receipts: Mapping[str, Receipt],
    kept: Mapping[str, PartEntry],
    base: Version | None,
) -> list[tuple[str, DeadLetter]]:
    """Every dead letter of the new version, in the order of the plan."""
    carried: dict[str, list[DeadLetter]] = {}
    if base is not None and any(entry.dead_letters for entry in kept.values()):
        for shard_key, letter in read_letters(store, base):
            carried.setdefault(shard_key, []).append(letter)
    return [
        (key, letter)
        for key in plan_keys
        for letter in (carried.get(key, []) if key in kept else receipts[key].dead_letters)
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
