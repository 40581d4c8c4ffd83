"""Hashes of a model folder: what has to be the same for two runs to give the same vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from arch import Checkpoint
from pipeline.errors import UsageError

MODEL_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class ModelIdentity:
    """Hex sha256 of the weights with all settings, and of the tokenizer."""

    model_sha256: str
    tokenizer_sha256: str


def identify(checkpoint: Checkpoint) -> ModelIdentity:
    """Hash every file that a model is read from, with its name; where it lies does not matter.

    Raises UsageError where a file cannot be read.
    """
    root = checkpoint.root
    folders = {root, checkpoint.folder, *checkpoint.module_folders}
    return ModelIdentity(
        model_sha256=_hash_files(root, _matching(folders, MODEL_FILES)),
        tokenizer_sha256=_hash_files(root, _matching([checkpoint.folder], TOKENIZER_FILES)),
    )


def _matching(folders: Iterable[Path], patterns: Iterable[str]) -> list[Path]:
    found = {path for f in folders for pattern in patterns for path in f.glob(pattern)}
    return sorted(path for path in found if path.is_file())


def _hash_files(folder: Path, paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        one = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    one.update(block)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
        whole.update(f"{path.relative_to(folder).as_posix()} {one.hexdigest()}\n".encode())
    return whole.hexdigest()
