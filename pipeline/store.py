"""Object storage: one folder of objects, on a local disk or behind s3://, gs:// or az://."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from pipeline.backends import Backend, Bucket, LocalFolder, ObjectInfo
from pipeline.errors import RayvecError, UsageError

__all__ = ["ObjectInfo", "ObjectNotFoundError", "Store", "StoreError"]

_SCHEMES = ("s3", "gs", "az")
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CREATE_ATTEMPTS = 3
_REFUSALS = (PermissionDeniedError, UnauthenticatedError, PermissionError)
_SERVER_ANSWER = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>")


class StoreError(RayvecError):
    """A storage operation failed; the message names the operation, the uri and the cause."""


class ObjectNotFoundError(StoreError):
    """The object that was asked for is not there."""


class Store:
    """A folder of objects addressed by relative keys such as ``parts/0001.parquet``.

    A store can be pickled; it is opened again from its uri, and takes its credentials from the
    environment of the process that opens it. Calls may come from several threads.
    """

    def __init__(
        self, uri: str, backend: Backend, *, endpoint: str | None, region: str | None
    ) -> None:
        self.uri = uri
        self._backend = backend
        self._endpoint = endpoint
        self._region = region

    @staticmethod
    def open(uri: str, *, endpoint: str | None = None, region: str | None = None) -> Store:
        """Open the folder `uri`: a local path, ``file://``, ``s3://``, ``gs://`` or ``az://``.

        Nothing is created or contacted; a local folder is made by the first put. `endpoint` and
        `region` override the environment (``AWS_ENDPOINT_URL`` and the like), and an endpoint
        that starts with ``http://`` allows plain http. Credentials come from the environment.
        Raises UsageError for an unusable uri and StoreError for an unusable configuration.
        """
        scheme, found, rest = uri.partition("://")
        if not found or scheme == "file":
            path = uri
            if found:
                parts = urlsplit(uri)
                if parts.netloc not in ("", "localhost"):
                    raise UsageError(f"{uri}: a file uri has three slashes: file:///folder")
                path = unquote(parts.path)
            if not path or endpoint is not None or region is not None:
                raise UsageError(
                    f"{uri!r}: a local folder needs a path, and takes no endpoint or region"
                )
            root = Path(os.path.abspath(os.path.expanduser(path)))
            return Store(str(root), LocalFolder(root), endpoint=None, region=None)
        if scheme not in _SCHEMES:
            raise UsageError(
                f"{uri}: unknown scheme {scheme!r}; known: a local path, file, s3, gs, az"
            )
        if not rest.strip("/"):
            raise UsageError(f"{uri}: no bucket in the uri; wanted {scheme}://bucket/folder")
        if region is not None and scheme != "s3":
            raise UsageError(f"{uri}: {scheme}:// takes no region, got {region!r}")
        if endpoint is None:
            names = _ENDPOINT_VARIABLES[scheme]
            endpoint = next((os.environ[name] for name in names if os.environ.get(name)), None)
        uri = uri.rstrip("/")
        try:
            backend = Bucket(uri, endpoint, region)
        except BaseError as error:
            raise StoreError(f"{uri}: cannot open: {_cause(error)}") from error
        return Store(uri, backend, endpoint=endpoint, region=region)

    def __reduce__(self) -> tuple[object, ...]:
        return (_reopen, (self.uri, self._endpoint, self._region))

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    def uri_of(self, key: str) -> str:
        """The full uri of `key` (a plain absolute path in a local folder)."""
        return f"{self.uri.rstrip('/')}/{key}" if key else self.uri

    def put(self, key: str, data: bytes) -> None:
        """Write `data` at `key`, whole or not at all, over whatever was there."""
        with self._named("put", key):
            self._backend.put(_checked(key), data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write `data` at `key` unless something is there: True when `data` is what is there now.

        A create whose answer was lost is sent again and then hears "already exists" of its own
        object, so the object is read back: the same bytes mean success. Callers that compete for
        a key therefore put something of their own (an attempt id) into `data`.
        """
        with self._named("create", key):
            _checked(key)
            for _ in range(_CREATE_ATTEMPTS):
                try:
                    self._backend.create(key, data)
                    return True
                except _REFUSALS:
                    raise
                except (FileExistsError, AlreadyExistsError):
                    winner = self._read_back(key)
                    if winner is not None:
                        return winner == data
                except (OSError, BaseError):
                    winner = self._read_back(key)
                    if winner is None:
                        raise
                    return winner == data
        raise StoreError(
            f"create {self.uri_of(key)}: the store said {_CREATE_ATTEMPTS} times that the object "
            "exists, and each time it was gone; is something else writing or deleting here?"
        )

    def get(self, key: str) -> bytes:
        """The whole content of `key`. Raises ObjectNotFoundError when it is not there."""
        with self._named("get", key):
            return self._backend.get(_checked(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes `start` to `end` (exclusive) of `key`, fewer where the object ends before `end`.

        Raises StoreError when `start` is past the end of the object.
        """
        if not 0 <= start <= end:
            raise ValueError(f"{self.uri_of(key)}: wanted 0 <= start <= end, got {start}, {end}")
        if start == end:
            return b""
        with self._named("get", key):
            return self._backend.get_range(_checked(key), start, end)

    def peek(self, limit: int) -> list[ObjectInfo]:
        """Up to `limit` objects, in the store's own order: cheap however many there are."""
        found: list[ObjectInfo] = []
        with self._named("list", ""):
            for info in self._backend.list(""):
                if len(found) == limit:
                    break
                found.append(info)
        return found

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object under the folder `prefix`, at any depth, sorted by key.

        `prefix` is whole path segments: ``parts`` finds ``parts/a``, not ``parts2/a``. A folder
        that is not there is empty. The listing is held in memory while it is sorted.
        """
        with self._named("list", prefix):
            found = sorted(self._backend.list(_checked_prefix(prefix)), key=lambda o: o.key)
        return iter(found)

    def head(self, key: str) -> ObjectInfo | None:
        """Size, etag and time of `key`, or None when it is not there."""
        with self._named("head", key):
            try:
                return self._backend.head(_checked(key))
            except FileNotFoundError:
                return None

    def delete(self, key: str) -> None:
        """Remove `key`; it is no error when it is not there."""
        with self._named("delete", key):
            try:
                self._backend.delete(_checked(key))
            except FileNotFoundError:
                return

    def _read_back(self, key: str) -> bytes | None:
        try:
            return self._backend.get(key)
        except (OSError, BaseError):
            return None

    @contextmanager
    def _named(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, BaseError) as error:
            message = f"{operation} {self.uri_of(key)}: {_cause(error)}"
            if operation == "get" and isinstance(error, FileNotFoundError):
                raise ObjectNotFoundError(message) from error
            raise StoreError(message) from error
        except _BadKeyError as error:
            raise StoreError(f"{operation} {self.uri}: bad key {key!r}: {error}") from error


class _BadKeyError(Exception):
    """A key that is not a plain relative path."""


def _reopen(uri: str, endpoint: str | None, region: str | None) -> Store:
    return Store.open(uri, endpoint=endpoint, region=region)


def _checked(key: str) -> str:
    if any(segment in ("", ".", "..") for segment in key.split("/")) or "\0" in key:
        raise _BadKeyError("wanted a relative path without empty, '.' or '..' segments")
    return key


def _checked_prefix(prefix: str) -> str:
    prefix = prefix.rstrip("/")
    return _checked(prefix) if prefix else ""


def _cause(error: Exception) -> str:
    """What went wrong, on one line, led by the plain name of the common causes."""
    text = " ".join(str(error).split("\n\nDebug source", 1)[0].split())
    answer = _SERVER_ANSWER.search(text)
    detail = f"{answer[1]}: {answer[2]}" if answer else text
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return f"no credentials in the environment, and none from this machine's cloud ({detail})"
    if isinstance(error, _REFUSALS) or "403 Forbidden" in text or "401 Unauthorized" in text:
        return f"no permission; check the credentials and their rights ({detail})"
    if "NoSuchBucket" in text or "ContainerNotFound" in text or "bucket does not exist" in text:
        return f"no such bucket ({detail})"
    if isinstance(error, FileNotFoundError):
        return f"not found ({detail})"
    if "error sending request" in text:
        return f"the endpoint cannot be reached ({detail})"
    return detail
