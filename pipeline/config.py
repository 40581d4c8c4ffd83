"""RunConfig: what one run is to do, read strictly from one YAML file.

Every key is a dataclass field below; its type, default and metadata are the only description of it,
and the loader, the tables of ``docs/CONFIG.md`` and the fingerprint are all derived from them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from pipeline.config_keys import Key, keys_of, meta
from pipeline.strict_yaml import ConfigError, read_tree

__all__ = ["ConfigError", "RunConfig", "fingerprint", "load_config", "schema_markdown"]

FINGERPRINT_FORMAT = 1  # raised when a key's value comes to mean something else
FINGERPRINT_NOTE = (
    "Every row is embedded again after a change of the model, its tokenizer, the dtype that "
    "`model.dtype` came to, or one of these keys"
)
SCHEMA_NOTE = (
    "Relative paths are relative to the current working directory. A value is never converted by "
    "guess: a string that looks like a number, a date or a boolean must be quoted."
)
CHUNK_COLUMNS = ("chunk_index", "chunk_start", "chunk_end")
OUTPUT_COLUMNS = ("id", *CHUNK_COLUMNS, "vector", "n_tokens", "truncated", "content_hash")

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
SourceFormat = Literal["parquet", "jsonl", "csv", "text", "python"]
Duplicates = Literal["fail", "keep_first", "dead_letter"]
DriverName = Literal["auto", "cpu", "numpy", "null", "cuda"]
VectorType = Literal["float32", "float16"]
BadRows = Literal["dead_letter", "fail"]
TooLong = Literal["truncate", "chunk", "dead_letter"]
RunMode = Literal["incremental", "full"]
Auto = Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model and how a text becomes a vector."""

    path: str = field(
        metadata=meta("A folder, a hub id, or `package:NAME/FOLDER` in an installed package.")
    )
    dtype: Dtype = field(
        default="auto",
        metadata=meta(
            "Precision of weights and activations. `auto`: the driver's first that the model's "
            "activations fit in, resolved once for a whole run.",
            choices=get_args(Dtype),
        ),
    )
    max_seq_len: int | None = field(
        default=None,
        metadata=meta(
            "Longest sequence in tokens, special tokens included. null: the folder's own limit.",
            low=1,
            fingerprint=True,
        ),
    )
    prompt: str | None = field(
        default=None,
        metadata=meta(
            "Name of one of the folder's prompts, put before every text. "
            "null: the folder's default prompt, where it names one.",
            fingerprint=True,
        ),
    )
    prompt_text: str | None = field(
        default=None,
        metadata=meta(
            "A literal prompt, put before every text as it stands, in place of `prompt`. "
            '`""`: no prompt, whatever the folder says.',
            fingerprint=True,
            empty=True,
        ),
    )
    pooling: Pooling | None = field(
        default=None,
        metadata=meta(
            "How token vectors become one vector. null: as the folder says.",
            choices=get_args(Pooling),
            fingerprint=True,
        ),
    )
    normalize: bool | None = field(
        default=None,
        metadata=meta("Scale vectors to length 1. null: as the folder says.", fingerprint=True),
    )
    dim: int | None = field(
        default=None,
        metadata=meta(
            "Keep the first `dim` values of each vector. null: all.", low=1, fingerprint=True
        ),
    )


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """The rows to embed."""

    format: SourceFormat = field(
        metadata=meta("Format of the input.", choices=get_args(SourceFormat), fingerprint=True)
    )
    uri: tuple[str, ...] = field(
        metadata=meta(
            "Files, folders or globs, local or in a store, or `package:NAME/FOLDER` in an "
            "installed package; one, or a list.",
            single=True,
        )
    )
    id_column: str = field(
        default="id",
        metadata=meta(
            "Column that names a row, once in the corpus. Formats `text` and `python` make their "
            "own ids: the relative path, and `path:qualified.name` of each function and class.",
            fingerprint=True,
        ),
    )
    text_column: str = field(
        default="text", metadata=meta("Column that is embedded.", fingerprint=True)
    )
    keep_columns: tuple[str, ...] = field(
        default=(),
        metadata=meta("Columns copied to the output beside the vector.", fingerprint=True),
    )
    rows_per_shard: int = field(
        default=20_000,
        metadata=meta(
            "Most rows in a shard, the unit of retry and reuse.", low=1, fingerprint=True
        ),
    )
    limit: int | None = field(
        default=None, metadata=meta("Read this many rows of the corpus. null: all.", low=1)
    )
    duplicates: Duplicates = field(
        default="fail",
        metadata=meta(
            "An id met again: `fail` stops the run and names both rows; `keep_first` keeps the "
            "first in plan order, drops and counts the rest; `dead_letter` keeps the first and "
            "makes each other one a dead letter.",
            choices=get_args(Duplicates),
            fingerprint=True,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ChunkingConfig:
    """Cutting texts into several rows."""

    max_tokens: int | None = field(
        default=None,
        metadata=meta(
            "Cut every text into chunks of at most this many tokens; not above "
            "`model.max_seq_len`. null: one row a text.",
            low=1,
            fingerprint=True,
        ),
    )
    overlap_tokens: int = field(
        default=0,
        metadata=meta(
            "Tokens a chunk repeats of the one before; below `max_tokens`, which it needs.",
            low=0,
            fingerprint=True,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """The processes that embed."""

    driver: DriverName = field(
        default="auto",
        metadata=meta(
            'Compute driver of every worker. Write `"null"` in quotes: bare, it is YAML\'s null. '
            "`cuda`: one GPU a worker.",
            choices=get_args(DriverName),
        ),
    )
    count: Auto | int = field(
        default="auto",
        metadata=meta("Workers. `auto`: as many as fit.", choices=get_args(Auto), low=1),
    )
    cpus_per_worker: float = field(
        default=0.75, metadata=meta("CPUs that Ray reserves for a worker.", above=0)
    )


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How many texts go through the model at once."""

    max_batch_tokens: Auto | int = field(
        default="auto",
        metadata=meta(
            "Tokens in a batch. `auto`: what the driver prefers.", choices=get_args(Auto), low=1
        ),
    )


@dataclass(frozen=True, kw_only=True)
class SinkConfig:
    """Where the index goes."""

    uri: str = field(metadata=meta("Folder of the index, local or in a store."))
    vector_type: VectorType = field(
        default="float32",
        metadata=meta(
            "Type of the stored vectors.", choices=get_args(VectorType), fingerprint=True
        ),
    )


@dataclass(frozen=True, kw_only=True)
class StorageConfig:
    """The object store. Credentials come from the environment, never from here."""

    endpoint: str | None = field(
        default=None,
        metadata=meta("`http://` or `https://` address of the store. null: the provider's own."),
    )
    region: str | None = field(
        default=None, metadata=meta("Region of the store. null: from the environment.")
    )


@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """What happens to rows and shards that fail."""

    bad_rows: BadRows = field(
        default="dead_letter",
        metadata=meta(
            "A row that cannot be embedded: `dead_letter` sets it aside with its reason; "
            "`fail` stops the run.",
            choices=get_args(BadRows),
        ),
    )
    too_long: TooLong = field(
        default="truncate",
        metadata=meta(
            "A text above the sequence limit: `truncate` cuts it and marks the row; `chunk` makes "
            "several rows of it; `dead_letter` sets it aside.",
            choices=get_args(TooLong),
            fingerprint=True,
        ),
    )
    max_bad_fraction: float = field(
        default=0.01, metadata=meta("Share of bad rows above which the run stops.", low=0, high=1)
    )
    max_shard_retries: int = field(
        default=3, metadata=meta("Times a failed shard is tried again.", low=0)
    )


@dataclass(frozen=True, kw_only=True)
class ModeConfig:
    """What an earlier version of the index is used for."""

    mode: RunMode = field(
        default="incremental",
        metadata=meta(
            "`incremental` embeds what changed since the last version; `full` embeds everything.",
            choices=get_args(RunMode),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: the sections of the YAML file. Hashable and picklable."""

    model: ModelConfig
    source: SourceConfig
    chunking: ChunkingConfig = ChunkingConfig()
    workers: WorkersConfig = WorkersConfig()
    batching: BatchingConfig = BatchingConfig()
    sink: SinkConfig
    storage: StorageConfig = StorageConfig()
    failure: FailureConfig = FailureConfig()
    run: ModeConfig = ModeConfig()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of plain values, fit for JSON or YAML; every key is there, tuples are lists."""
        return {
            section: {k: list(v) if isinstance(v, tuple) else v for k, v in keys.items()}
            for section, keys in asdict(self).items()
        }


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and ``section.key=value`` overrides, the last of which wins.

    Raises ConfigError (exit code 2) that names the place, ``file:line`` or ``--set …``, for an
    unknown, duplicate or missing key, a value that is not what the key takes, or values that
    contradict each other. Relative paths in it are relative to the current working directory.
    """
    reading = read_tree(RunConfig, path, overrides)
    sections = get_type_hints(RunConfig)
    config = RunConfig(**{name: sections[name](**keys) for name, keys in reading.values.items()})
    for section, name, reason in _contradictions(config):
        raise ConfigError(f"{reading.places[section, name]}: {section}.{name}: {reason}")
    return config


def _contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """(section, key, reason) of each written key whose value does not go with the others."""
    model, source, chunking = config.model, config.source, config.chunking
    if model.prompt is not None and model.prompt_text is not None:
        yield "model", "prompt_text", "model.prompt is set too; keep one of the two"
    for column in source.keep_columns:
        if column in OUTPUT_COLUMNS:
            yield "source", "keep_columns", f"{column!r} is the name of an output column of its own"
    overlap, most = chunking.overlap_tokens, chunking.max_tokens
    if overlap and most is None:
        yield "chunking", "overlap_tokens", f"{overlap} needs chunking.max_tokens, which is null"
    if most is not None:
        if overlap >= most:
            reason = f"wanted less than chunking.max_tokens ({most}), got {overlap}"
            yield "chunking", "overlap_tokens", reason
        if model.max_seq_len is not None and most > model.max_seq_len:
            reason = f"wanted at most model.max_seq_len ({model.max_seq_len}), got {most}"
            yield "chunking", "max_tokens", reason
    if config.sink.uri.rstrip("/") in [uri.rstrip("/") for uri in source.uri]:
        yield "sink", "uri", "is source.uri too; the index needs a place of its own"
    endpoint = config.storage.endpoint
    if endpoint is not None and not re.fullmatch(r"https?://[^\s@]+", endpoint):
        reason = "wanted http://host or https://host, and no user or password: credentials come "
        yield "storage", "endpoint", reason + "from the environment"


def schema_markdown() -> str:
    """Markdown tables of every section: key, type, default, meaning."""
    keys = keys_of(RunConfig)
    lines = [SCHEMA_NOTE]
    for section, table in keys.items():
        head = ("| key | type | default | meaning |", "|---|---|---|---|")
        lines += ["", f"## {section}", "", *head]
        lines += [
            f"| `{k.name}` | {k.wanted} | {_default_markdown(k)} | {k.doc} |"
            for k in table.values()
        ]
    changed = [f"`{k.path}`" for table in keys.values() for k in table.values() if k.fingerprint]
    lines += ["", "## Fingerprint", "", f"{FINGERPRINT_NOTE}: {', '.join(changed)}."]
    return "\n".join(lines) + "\n"


def _default_markdown(k: Key) -> str:
    if k.required:
        return "required"
    if isinstance(k.default, str):
        return f"`{k.default}`"
    return f"`{json.dumps(k.default)}`"


def fingerprint(
    config: RunConfig, *, model_sha256: str, tokenizer_sha256: str, resolved_dtype: str
) -> str:
    """Hex sha256 of what changes vectors or rows, and of nothing else.

    A null key takes its value from the model folder, so ``model_sha256`` has to cover the folder's
    configuration files as well as its weights. ``resolved_dtype`` is what ``model.dtype`` came to.
    Raises ValueError for an empty hash or a dtype that is not resolved.
    """
    if not model_sha256 or not tokenizer_sha256:
        raise ValueError("fingerprint: model_sha256 and tokenizer_sha256 must not be empty")
    resolved = [dtype for dtype in get_args(Dtype) if dtype != "auto"]
    if resolved_dtype not in resolved:
        raise ValueError(
            f"fingerprint: resolved_dtype: wanted one of {', '.join(resolved)}, "
            f"got {resolved_dtype!r}"
        )
    values = config.to_dict()
    content = {
        "format": FINGERPRINT_FORMAT,
        "model_sha256": model_sha256,
        "tokenizer_sha256": tokenizer_sha256,
        "dtype": resolved_dtype,
        "keys": {
            k.path: values[k.section][k.name]
            for table in keys_of(RunConfig).values()
            for k in table.values()
            if k.fingerprint
        },
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
