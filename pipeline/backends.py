"""The two kinds of storage behind a Store: a bucket or container, and a local folder.

Buckets go through obstore. A local folder is handled with plain files: obstore's local store
neither syncs what it writes nor lists files whose names look like its temporary ones.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

_CONNECT_TIMEOUT = dt.timedelta(seconds=10)
_STALL_TIMEOUT = dt.timedelta(seconds=120)
_REQUEST_TIMEOUT = dt.timedelta(seconds=600)
_RETRY: RetryConfig = {
    "max_retries": 6,
    "retry_timeout": dt.timedelta(seconds=120),
    "backoff": {
        "init_backoff": dt.timedelta(milliseconds=100),
        "max_backoff": dt.timedelta(seconds=5),
    },
}
_MULTIPART_BYTES = 64 << 20
_TEMPORARY = re.compile(r"\.rayvec-[0-9a-f]{32}\.tmp")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: its key in the store, and what tells a changed object from the old one."""

    key: str
    size: int
    """Size in bytes."""
    etag: str
    """Changes whenever the content changes; compared, never parsed."""
    last_modified: dt.datetime
    """In UTC."""


class Backend(Protocol):
    """What a kind of storage does; it raises OSError or obstore's own errors."""

    def put(self, key: str, data: bytes) -> None: ...
    def create(self, key: str, data: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def get_range(self, key: str, start: int, end: int) -> bytes: ...
    def list(self, prefix: str) -> Iterator[ObjectInfo]: ...
    def head(self, key: str) -> ObjectInfo: ...
    def delete(self, key: str) -> None: ...


class Bucket:
    """A folder of a bucket or container, through obstore."""

    def __init__(self, uri: str, endpoint: str | None, region: str | None) -> None:
        scheme, _, rest = uri.partition("://")
        bucket, _, folder = rest.partition("/")
        prefix = folder or None
        options: ClientConfig = {
            "connect_timeout": _CONNECT_TIMEOUT,
            "read_timeout": _STALL_TIMEOUT,
            "timeout": _REQUEST_TIMEOUT,
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
        }
        self._store: S3Store | GCSStore | AzureStore
        if scheme == "s3":
            s3: S3Config = {"virtual_hosted_style_request": False}
            if endpoint is not None:
                s3["endpoint"] = endpoint
            if region is not None:
                s3["region"] = region
            self._store = S3Store(
                bucket, prefix=prefix, config=s3, client_options=options, retry_config=_RETRY
            )
        elif scheme == "gs":
            gs: GCSConfig = {} if endpoint is None else {"base_url": endpoint}
            self._store = GCSStore(
                bucket, prefix=prefix, config=gs, client_options=options, retry_config=_RETRY
            )
        else:
            az: AzureConfig = {} if endpoint is None else {"endpoint": endpoint}
            self._store = AzureStore(
                bucket, prefix=prefix, config=az, client_options=options, retry_config=_RETRY
            )

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data, use_multipart=len(data) > _MULTIPART_BYTES)

    def create(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data, mode="create")

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return bytes(obstore.get_range(self._store, key, start=start, end=end))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for chunk in obstore.list(self._store, prefix or None, chunk_size=1000):
            for meta in chunk:
                if meta["path"] not in ("", prefix):
                    yield _info(meta["path"], meta)

    def head(self, key: str) -> ObjectInfo:
        return _info(key, obstore.head(self._store, key))

    def delete(self, key: str) -> None:
        obstore.delete(self._store, key)


def _info(key: str, meta: obstore.ObjectMeta) -> ObjectInfo:
    modified = meta["last_modified"]
    etag = meta["e_tag"] or meta["version"] or f"{modified.isoformat()}-{meta['size']}"
    return ObjectInfo(key, meta["size"], etag, modified)


class LocalFolder:
    """A folder on a local disk. Writes are synced, then moved into place under their name."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        self._write(key, data, os.replace)

    def create(self, key: str, data: bytes) -> None:
        self._write(key, data, os.link)

    def get(self, key: str) -> bytes:
        return (self._root / key).read_bytes()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with open(self._root / key, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if start >= size:
                raise OSError(f"the range starts at byte {start} of {size}")
            file.seek(start)
            return file.read(end - start)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        pending = [(self._root / prefix, f"{prefix}/" if prefix else "", frozenset[object]())]
        while pending:
            folder, at, above = pending.pop()
            try:
                status = folder.stat()
                entries = list(os.scandir(folder))
            except FileNotFoundError:
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                raise OSError(f"{folder} links back to a folder above it")
            for entry in entries:
                key = at + entry.name
                if entry.is_dir():
                    pending.append((folder / entry.name, f"{key}/", above | {identity}))
                elif not _TEMPORARY.fullmatch(entry.name):
                    try:
                        yield _local_info(key, entry.stat())
                    except FileNotFoundError:
                        if entry.is_symlink() and os.path.lexists(entry.path):
                            raise OSError(f"{entry.path} is a link to nothing") from None

    def head(self, key: str) -> ObjectInfo:
        path = self._root / key
        if not path.is_file():
            raise FileNotFoundError(str(path))
        return _local_info(key, path.stat())

    def delete(self, key: str) -> None:
        (self._root / key).unlink()

    def _write(self, key: str, data: bytes, place: Callable[[str, str], None]) -> None:
        target = self._root / key
        _make_folder(target.parent)
        temporary = target.parent / f".rayvec-{uuid.uuid4().hex}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            place(str(temporary), str(target))
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)


def _local_info(key: str, status: os.stat_result) -> ObjectInfo:
    modified = dt.datetime.fromtimestamp(status.st_mtime, dt.timezone.utc)
    etag = f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
    return ObjectInfo(key, status.st_size, etag, modified)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make new names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
