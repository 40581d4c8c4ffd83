"""`package:NAME/FOLDER`: a folder inside an installed Python package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pipeline.errors import UsageError

PREFIX = "package:"


def package_folder(uri: str, *, what: str) -> Path:
    """The folder that `package:NAME` or `package:NAME/FOLDER` names; NAME may have dots.

    Nothing of the package is run but the packages above a dotted NAME. what: how the error calls
    the place. Raises UsageError where there is no such package or folder.
    """
    name, _, inside = uri.removeprefix(PREFIX).partition("/")
    try:
        spec = importlib.util.find_spec(name) if name else None
    except Exception as error:  # whatever the code of a package above a dotted NAME raises
        raise UsageError(f"{what} '{uri}': package '{name}' cannot be found: {error}") from error
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise UsageError(f"{what} '{uri}': no package '{name}' is installed here")
    if inside.startswith("/") or ".." in Path(inside).parts:
        raise UsageError(f"{what} '{uri}': '{inside}' is not a folder inside the package")
    folder = Path(places[0], inside)
    try:
        found = folder.is_dir()
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} '{uri:.80}': is no folder: {error}") from error
    if not found:
        raise UsageError(f"{what} '{uri}': the package has no folder '{inside}' ({folder})")
    return folder
