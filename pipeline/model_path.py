"""Where a model is: a folder, `package:NAME/FOLDER` inside an installed package, or a hub id."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.package_path import PREFIX, package_folder

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

# Everything a folder is read from; never pickled weights, code or other formats of the weights.
HUB_FILES = ("*.json", "*.safetensors", "vocab.txt")


def resolve_model(model: str) -> Path:
    """The local folder of a model; a hub id is downloaded, or found in the cache.

    What exists as a folder is a folder. HF_HUB_OFFLINE=1 keeps to the cache. Raises UsageError
    saying what was looked for and where.
    """
    if model.startswith(PREFIX):
        return package_folder(model, what="model")
    if not model:
        raise UsageError("model '' is empty; wanted a folder, package:NAME/FOLDER, or a hub id")
    try:
        folder = Path(model).expanduser()
        if folder.is_dir():
            return folder
        exists = folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such home, a NUL
        raise UsageError(f"model '{model:.80}': is no folder: {error}") from error
    if HUB_ID.fullmatch(model) and not exists:
        return _from_hub(model)
    what = "is a file, not a folder" if exists else "is no folder"
    raise UsageError(
        f"model '{model}' {what}; wanted a folder, package:NAME/FOLDER, or a hub id like "
        "'sentence-transformers/all-MiniLM-L6-v2'"
    )


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first_line = (
            str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        )
        raise UsageError(
            f"model '{model}': is no folder here, and the hub gave: {first_line}"
        ) from error
