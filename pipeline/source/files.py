"""Input files as byte streams: local or in a store, compressed or not."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.source.types import Piece, SourceChangedError, SourceFile
from pipeline.store import Store

_CODECS = {".gz": "gzip", ".zst": "zstd"}
_LOCAL_READ_BYTES = 1 << 20
_REMOTE_READ_BYTES = 8 << 20
_HEAD_BYTES = 64
BOM = b"\xef\xbb\xbf"


class Files:
    """Access to input files; holds one open Store for each bucket, and one for the local disk."""

    def __init__(self, endpoint: str | None = None, region: str | None = None) -> None:
        self._endpoint = endpoint
        self._region = region
        self._stores: dict[str, Store] = {}

    def locate(self, uri: str) -> tuple[Store, str]:
        """The store that holds `uri` (a bucket, or the whole local disk) and its key there."""
        if is_remote(uri):
            scheme, _, rest = uri.partition("://")
            bucket, _, key = rest.partition("/")
            root, endpoint, region = f"{scheme}://{bucket}", self._endpoint, self._region
        else:
            root, key, endpoint, region = os.sep, local_path(uri).lstrip(os.sep), None, None
        if root not in self._stores:
            self._stores[root] = Store.open(root, endpoint=endpoint, region=region)
        return self._stores[root], key

    def check_unchanged(self, piece: Piece) -> None:
        """Raise SourceChangedError unless the file is the one that was planned."""
        store, key = self.locate(piece.uri)
        info = store.head(key)
        if info is None:
            raise SourceChangedError(f"{piece.uri}: gone since the plan was made")
        if (info.size, info.etag) != (piece.size, piece.etag):
            raise SourceChangedError(
                f"{piece.uri}: changed since the plan was made: {piece.size} bytes with etag "
                f"{piece.etag} then, {info.size} bytes with etag {info.etag} now"
            )

    @contextmanager
    def arrow_file(self, file: SourceFile) -> Iterator[pa.NativeFile]:
        """The bytes of `file` as a random-access Arrow file."""
        with ExitStack() as stack:
            if is_remote(file.uri):
                raw = io.BufferedReader(self._ranges(file), _LOCAL_READ_BYTES)
                yield stack.enter_context(pa.PythonFile(raw, mode="r"))
            else:
                yield stack.enter_context(pa.OSFile(file.uri, mode="r"))

    @contextmanager
    def stream(
        self,
        file: SourceFile,
        start: int = 0,
        end: int | None = None,
        *,
        read_bytes: int | None = None,
    ) -> Iterator[io.BufferedReader]:
        """Bytes `start` to `end` of `file`, decompressed where its name ends in .gz or .zst.

        In a compressed file the offsets count decompressed bytes, and those before `start` are
        decompressed and thrown away. `read_bytes` are read at a time (None: as suits the place).
        Raises OSError where compressed data is broken or cut.
        """
        codec = _CODECS.get(os.path.splitext(file.name)[1].lower())
        if read_bytes is None:
            read_bytes = _REMOTE_READ_BYTES if is_remote(file.uri) else _LOCAL_READ_BYTES
        with ExitStack() as stack:
            base: _Readable
            if codec is not None:
                below = stack.enter_context(self.arrow_file(file))
                base = stack.enter_context(pa.CompressedInputStream(below, codec))
                _skip(base, start)
            else:
                raw = self._ranges(file) if is_remote(file.uri) else io.FileIO(file.uri)
                raw.seek(start)
                base = stack.enter_context(raw)
            section = _Section(base, None if end is None else end - start)
            yield stack.enter_context(io.BufferedReader(section, read_bytes))

    def _ranges(self, file: SourceFile) -> _RangeFile:
        store, key = self.locate(file.uri)
        return _RangeFile(lambda start, end: store.get_range(key, start, end), file.size)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


class _Section(io.RawIOBase):
    """The next `limit` bytes of a stream (None: all that is left)."""

    def __init__(self, base: _Readable, limit: int | None) -> None:
        self._base = base
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = len(buffer) if self._left is None else min(len(buffer), self._left)
        data = self._base.read(wanted) or b""
        buffer[: len(data)] = data
        if self._left is not None:
            self._left -= len(data)
        return len(data)


class _RangeFile(io.RawIOBase):
    """An object in a store as a seekable file, read by ranges."""

    def __init__(self, get_range: Callable[[int, int], bytes], size: int) -> None:
        self._get_range = get_range
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = origin + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._at + len(buffer), self._size)
        data = self._get_range(self._at, end) if end > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def is_remote(uri: str) -> bool:
    """Whether `uri` names an object in a store, not a file on this machine."""
    scheme, found, _ = uri.partition("://")
    return bool(found) and scheme != "file"


def local_path(uri: str) -> str:
    """The absolute path of a local uri: a path or ``file:///path``."""
    path = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
    return os.path.abspath(os.path.expanduser(path))


def refuse_other_content(file: SourceFile, stream: io.BufferedReader, wanted: str) -> None:
    """Raise UsageError where the start of `stream` shows that it is not UTF-8 text.

    UTF-16 and UTF-32, Parquet, and compressed data under a plain name are recognised.
    """
    head = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
    found = None
    if head.startswith(b"PAR1"):
        found = "a Parquet file"
    elif head.startswith(b"\x1f\x8b"):
        found = "gzip-compressed data; its name should end in .gz"
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        found = "zstd-compressed data; its name should end in .zst"
    elif is_utf16(head):
        found = "UTF-16 or UTF-32 text; convert it to UTF-8"
    if found is not None:
        raise UsageError(f"{file.uri}: wanted {wanted}, got {found}")


def is_utf16(head: bytes) -> bool:
    """Whether a file that starts with `head` is UTF-16 or UTF-32, by its BOM or by its zeros."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
        return True
    even, odd = head[0::2], head[1::2]
    return len(odd) > 1 and (
        (not any(even) and all(odd)) or (not any(odd) and all(even[: len(odd)]))
    )


def _skip(stream: _Readable, count: int) -> None:
    while count > 0:
        data = stream.read(min(count, _LOCAL_READ_BYTES))
        if not data:
            raise OSError(f"the data ends {count} bytes before the planned range")
        count -= len(data)
