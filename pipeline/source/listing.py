"""Which files a source names: folders, globs, single files, and lists of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from pipeline.errors import UsageError
from pipeline.package_path import PREFIX, package_folder
from pipeline.source.files import Files, is_remote, local_path
from pipeline.source.types import SourceFile

_WILDCARD = re.compile(r"[*?\[]")


def list_files(uris: Sequence[str], suffixes: tuple[str, ...], files: Files) -> list[SourceFile]:
    """The files that `uris` name, sorted by name, each once.

    An entry is a file, a folder (every file below it whose name ends in one of `suffixes`; names
    that start with a dot are skipped, folders too) or a glob (``*``, ``?``, ``[ab]`` within a
    name, ``**/`` for any folders; an existing local path is never taken as a glob), or
    ``package:NAME/FOLDER`` inside an installed package, whose files keep ``NAME/FOLDER/`` before
    their names wherever it is installed. With one other entry, a file's name is its path below
    that folder, or below the glob's fixed part; with several, that folder as written goes before
    it. A file that two entries name belongs to the first.

    Raises UsageError when an entry names nothing, and StoreError when a store does not answer.
    """
    found: dict[str, SourceFile] = {}
    for uri in uris:
        for file in _list_entry(uri, suffixes, files, keep_root=len(uris) > 1):
            found.setdefault(file.uri, file)
    return sorted(found.values(), key=lambda file: (file.name, file.uri))


def _list_entry(
    uri: str, suffixes: tuple[str, ...], files: Files, keep_root: bool
) -> list[SourceFile]:
    if uri.startswith(PREFIX):
        root = f"{uri.removeprefix(PREFIX).rstrip('/')}/"
        folder = str(package_folder(uri, what="source.uri"))
        below = _list_entry(folder, suffixes, files, keep_root=False)
        return [SourceFile(f.uri, root + f.name, f.size, f.etag) for f in below]
    wildcard = _WILDCARD.search(uri)
    if wildcard is not None and (is_remote(uri) or not os.path.exists(local_path(uri))):
        root = uri[: uri.rfind("/", 0, wildcard.start()) + 1]
        pattern = glob_pattern(uri[len(root) :])
        found = _walk(root or ".", files, lambda name: bool(pattern.fullmatch(name)))
        wanted = "no file there has a name like that"
    else:
        folder = uri.rstrip("/")
        single = _single_file(uri, files)
        if single is not None:
            root = folder[: folder.rfind("/") + 1]
            found = [single]
        else:
            root = f"{folder}/"
            found = _walk(root, files, lambda name: _is_wanted(name, suffixes))
        wanted = f"no such file, and no folder with names ending in {', '.join(suffixes)}"
    if not found:
        raise UsageError(f"source.uri: no files matched {uri}: {wanted}")
    if keep_root:
        found = [SourceFile(f.uri, root + f.name, f.size, f.etag) for f in found]
    return found


def _single_file(uri: str, files: Files) -> SourceFile | None:
    """The file at `uri`, named by its last component; None when there is none."""
    store, key = files.locate(uri)
    info = store.head(key) if key and not uri.endswith("/") else None
    if info is None:
        return None
    location = store.uri_of(key) if is_remote(uri) else local_path(uri)
    return SourceFile(location, _checked_name(key.rpartition("/")[2]), info.size, info.etag)


def _walk(folder: str, files: Files, wanted: Callable[[str], bool]) -> list[SourceFile]:
    """The files below `folder` whose path relative to it is wanted."""
    store, key = files.locate(folder)
    key = key.rstrip("/")
    below = len(key) + 1 if key else 0
    return [
        SourceFile(store.uri_of(info.key), _checked_name(info.key[below:]), info.size, info.etag)
        for info in store.list(key)
        if wanted(info.key[below:])
    ]


def _is_wanted(name: str, suffixes: tuple[str, ...]) -> bool:
    hidden = name.startswith(".") or "/." in name
    return not hidden and name.lower().endswith(suffixes)


def _checked_name(name: str) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"source.uri: the file name {name!r} is not UTF-8; rename it") from error
    return name


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A regular expression for whole relative paths that `glob` matches.

    ``*`` and ``?`` stop at ``/``; ``**/`` is any number of folders, and a final ``**`` anything;
    ``[ab]`` and ``[!ab]`` are one character. Raises UsageError for an open bracket.
    """
    parts: list[str] = []
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            parts.append("(?:[^/]+/)*")
            at += 3
        elif glob.startswith("**", at):
            parts.append(".*")
            at += 2
        elif glob[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif glob[at] == "?":
            parts.append("[^/]")
            at += 1
        elif glob[at] == "[":
            end = glob.find("]", at + 2)
            if end < 0:
                raise UsageError(f"source.uri: {glob!r}: '[' without ']'")
            inside = glob[at + 1 : end]
            negated = inside.startswith("!")
            inside = inside[negated:].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            parts.append(f"[{'^/' if negated else ''}{inside}]")
            at = end + 1
        else:
            parts.append(re.escape(glob[at]))
            at += 1
    return re.compile("".join(parts), re.DOTALL)
