"""Fixtures that write, load and refuse a run.yaml in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import ConfigError, RunConfig, load_config
from pipeline.config_keys import keys_of

MINIMAL = """\
model: {path: folder}
source:
  format: parquet
  uri: corpus
sink:
  uri: index
"""
HASHES = {"model_sha256": "a" * 64, "tokenizer_sha256": "b" * 64, "resolved_dtype": "float32"}
ALL_KEYS = [key for table in keys_of(RunConfig).values() for key in table.values()]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes run.yaml in the current directory, so that errors begin with ``run.yaml:``."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str | bytes) -> str:
        data = text.encode() if isinstance(text, str) else text
        Path("run.yaml").write_bytes(data)
        return "run.yaml"

    return write_text


@pytest.fixture
def refuse(write):
    """The message with which a file, with its overrides, is refused."""

    def message(text: str | bytes, *overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(write(text), overrides)
        return str(caught.value)

    return message


@pytest.fixture
def load(write):
    def load_text(text: str, *overrides: str) -> RunConfig:
        return load_config(write(text), overrides)

    return load_text
