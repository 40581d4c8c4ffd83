"""The configuration: its schema as a document, and the fingerprint of what changes vectors."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any

import pytest
from config_file import ALL_KEYS, HASHES, MINIMAL

from pipeline.config import (
    RunConfig,
    fingerprint,
    schema_markdown,
)
from pipeline.config_keys import Key, keys_of

# The schema


def test_schema_markdown_has_a_row_for_every_key():
    text = schema_markdown()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == [key.name for key in ALL_KEYS]
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert sections == [*keys_of(RunConfig), "Fingerprint"]
    assert "| `path` | a string | required | " in text
    assert "| `rows_per_shard` | an integer >= 1 | `20000` | " in text
    assert "| `uri` | a string or a list of strings | required | " in text
    assert "| `count` | auto or an integer >= 1 | `auto` | " in text
    assert "| `keep_columns` | a list of strings | `[]` | " in text
    assert "relative to the current working directory" in text


def test_every_choice_is_accepted(load):
    for key in ALL_KEYS:
        for choice in key.choices:
            config = load(MINIMAL, f'{key.path}="{choice}"')
            assert config.to_dict()[key.section][key.name] == choice


# The fingerprint

OTHER_VALUES: dict[str, Any] = {
    "model.path": "elsewhere",
    "model.dtype": "float16",
    "model.max_seq_len": 64,
    "model.prompt": "query",
    "model.prompt_text": "query: ",
    "model.pooling": "cls",
    "model.normalize": False,
    "model.dim": 64,
    "source.format": "csv",
    "source.uri": ("elsewhere",),
    "source.id_column": "other",
    "source.text_column": "other",
    "source.keep_columns": ("lang",),
    "source.rows_per_shard": 7,
    "source.limit": 7,
    "source.duplicates": "keep_first",
    "chunking.max_tokens": 64,
    "chunking.overlap_tokens": 7,
    "workers.driver": "numpy",
    "workers.count": 2,
    "workers.cpus_per_worker": 1.0,
    "batching.max_batch_tokens": 512,
    "sink.uri": "elsewhere",
    "sink.vector_type": "float16",
    "storage.endpoint": "http://host",
    "storage.region": "eu",
    "failure.bad_rows": "fail",
    "failure.too_long": "chunk",
    "failure.max_bad_fraction": 0.5,
    "failure.max_shard_retries": 7,
    "run.mode": "full",
}
NOT_IN_FINGERPRINT = {
    "model.path",
    "model.dtype",
    "source.uri",
    "source.limit",
    "workers.driver",
    "workers.count",
    "workers.cpus_per_worker",
    "batching.max_batch_tokens",
    "sink.uri",
    "storage.endpoint",
    "storage.region",
    "failure.bad_rows",
    "failure.max_bad_fraction",
    "failure.max_shard_retries",
    "run.mode",
}


def replaced(config: RunConfig, key: Key, value: object) -> RunConfig:
    section = dataclasses.replace(getattr(config, key.section), **{key.name: value})
    return dataclasses.replace(config, **{key.section: section})


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.path)
def test_fingerprint_changes_with_vectors_and_rows_only(load, key):
    config = load(MINIMAL)
    other = replaced(config, key, OTHER_VALUES[key.path])
    assert other != config
    same = fingerprint(other, **HASHES) == fingerprint(config, **HASHES)
    assert same == (key.path in NOT_IN_FINGERPRINT)


@pytest.mark.parametrize(
    "change",
    [
        {"model_sha256": "c" * 64},
        {"tokenizer_sha256": "c" * 64},
        {"resolved_dtype": "bfloat16"},
        {"model_sha256": "b" * 64, "tokenizer_sha256": "a" * 64},
    ],
    ids=lambda change: "+".join(change),
)
def test_fingerprint_changes_with_hashes_and_dtype(load, change):
    config = load(MINIMAL)
    assert fingerprint(config, **HASHES) != fingerprint(config, **{**HASHES, **change})


def test_fingerprint_changes_with_its_format(load, monkeypatch):
    config = load(MINIMAL)
    before = fingerprint(config, **HASHES)
    monkeypatch.setattr("pipeline.config.FINGERPRINT_FORMAT", 2)
    assert fingerprint(config, **HASHES) != before


def test_fingerprint_is_the_sha256_of_this_text(load):
    """A change of this text means that every index made before is embedded again."""
    text = """
        {"dtype":"float32","format":1,"keys":{
        "chunking.max_tokens":null,"chunking.overlap_tokens":0,"failure.too_long":"truncate",
        "model.dim":null,"model.max_seq_len":null,"model.normalize":null,"model.pooling":null,
        "model.prompt":null,"model.prompt_text":null,
        "sink.vector_type":"float32",
        "source.duplicates":"fail","source.format":"parquet","source.id_column":"id",
        "source.keep_columns":[],"source.rows_per_shard":20000,"source.text_column":"text"},
        "model_sha256":"MODEL","tokenizer_sha256":"TOKENIZER"}
    """
    text = "".join(text.split()).replace("MODEL", "a" * 64).replace("TOKENIZER", "b" * 64)
    assert fingerprint(load(MINIMAL), **HASHES) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_sha256": ""}, "must not be empty"),
        ({"tokenizer_sha256": ""}, "must not be empty"),
        ({"resolved_dtype": "auto"}, "wanted one of float32, float16, bfloat16, got 'auto'"),
        ({"resolved_dtype": "f32"}, "wanted one of float32, float16, bfloat16, got 'f32'"),
    ],
)
def test_fingerprint_refuses_what_is_not_resolved(load, change, message):
    with pytest.raises(ValueError, match=message):
        fingerprint(load(MINIMAL), **{**HASHES, **change})
