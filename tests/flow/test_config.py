"""The configuration: keys, sections, overrides and contradictions."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
import yaml
from config_file import ALL_KEYS, MINIMAL

from pipeline.config import (
    ConfigError,
)
from pipeline.errors import UsageError

# What is accepted


def test_minimal_file_has_the_documented_defaults(load):
    config = load(MINIMAL)
    assert config.to_dict() == {
        "model": {
            "path": "folder",
            "dtype": "auto",
            "max_seq_len": None,
            "prompt": None,
            "prompt_text": None,
            "pooling": None,
            "normalize": None,
            "dim": None,
        },
        "source": {
            "format": "parquet",
            "uri": ["corpus"],
            "id_column": "id",
            "text_column": "text",
            "keep_columns": [],
            "rows_per_shard": 20000,
            "limit": None,
            "duplicates": "fail",
        },
        "chunking": {"max_tokens": None, "overlap_tokens": 0},
        "workers": {"driver": "auto", "count": "auto", "cpus_per_worker": 0.75},
        "batching": {"max_batch_tokens": "auto"},
        "sink": {"uri": "index", "vector_type": "float32"},
        "storage": {"endpoint": None, "region": None},
        "failure": {
            "bad_rows": "dead_letter",
            "too_long": "truncate",
            "max_bad_fraction": 0.01,
            "max_shard_retries": 3,
        },
        "run": {"mode": "incremental"},
    }


def test_every_key_can_be_set(load):
    text = """\
model: {path: "package:p/model", dtype: bfloat16, max_seq_len: 512, prompt: query,
        pooling: weightedmean, normalize: true, dim: 128}
source: {format: jsonl, uri: ["s3://b/one/", s3://b/two/], id_column: "123", text_column: body,
         keep_columns: [lang, "no"], rows_per_shard: 7, limit: 10, duplicates: keep_first}
chunking: {max_tokens: 256, overlap_tokens: 255}
workers: {driver: "null", count: 4, cpus_per_worker: 2}
batching: {max_batch_tokens: 4096}
sink: {uri: "s3://b/index/", vector_type: float16}
storage: {endpoint: "http://127.0.0.1:9000", region: eu-west-1}
failure: {bad_rows: fail, too_long: chunk, max_bad_fraction: 0, max_shard_retries: 0}
run: {mode: full}
"""
    config = load(text)
    assert config.model.normalize is True
    assert config.source.uri == ("s3://b/one/", "s3://b/two/")
    assert config.source.id_column == "123"
    assert config.source.keep_columns == ("lang", "no")
    assert config.workers.driver == "null"
    assert config.workers.count == 4
    assert config.workers.cpus_per_worker == 2.0
    assert isinstance(config.workers.cpus_per_worker, float)
    assert isinstance(config.failure.max_bad_fraction, float)
    defaults = load(MINIMAL).to_dict()
    same = [
        f"{section}.{key}"
        for section, keys in config.to_dict().items()
        for key, value in keys.items()
        if value == defaults[section][key]
    ]
    assert same == ["model.prompt_text"]


def test_config_is_frozen_hashable_picklable_and_round_trips(load):
    config = load(MINIMAL, "source.keep_columns=[lang]", "workers.driver='null'")
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(load(MINIMAL)) == hash(load(MINIMAL))
    assert len({config, load(MINIMAL), load(MINIMAL)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.path = "other"
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()
    assert load(yaml.safe_dump(config.to_dict())) == config


def test_byte_order_mark_windows_newlines_and_comments_are_fine(load):
    assert load("\ufeff# a comment\r\n" + MINIMAL.replace("\n", "\r\n")) == load(MINIMAL)


def test_prompt_text_is_taken_as_it_stands(load):
    assert load(MINIMAL, 'model.prompt_text="query: "').model.prompt_text == "query: "
    assert load(MINIMAL, 'model.prompt_text=""').model.prompt_text == ""


@pytest.mark.parametrize("text", ["0.5", ".5", "5e-1", "5.0e-1", "0.50"])
def test_a_float_key_takes_every_plain_decimal_notation(load, text):
    assert load(MINIMAL, f"failure.max_bad_fraction={text}").failure.max_bad_fraction == 0.5


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "false", "False"])
def test_a_boolean_key_takes_true_and_false(load, text):
    assert load(MINIMAL, f"model.normalize={text}").model.normalize is (text[0] in "tT")


def test_config_error_is_a_usage_error_with_exit_code_2():
    assert issubclass(ConfigError, UsageError)
    assert ConfigError("x").exit_code == 2


# Keys and sections


def test_unknown_key_names_the_nearest(refuse):
    text = MINIMAL + "batching:\n  # a comment\n  max_sequence: 3\n"
    assert refuse(text) == (
        "run.yaml:9: batching: unknown key 'max_sequence'; did you mean 'max_batch_tokens'?"
    )


def test_unknown_key_that_another_section_has_names_that_one(refuse):
    assert refuse(MINIMAL + "batching:\n  max_seq_len: 3\n") == (
        "run.yaml:8: batching: unknown key 'max_seq_len'; did you mean 'model.max_seq_len'?"
    )
    assert refuse("uri: x\n" + MINIMAL) == (
        "run.yaml:1: unknown key 'uri'; did you mean 'source.uri' or 'sink.uri'?"
    )


def test_unknown_key_with_no_near_one_lists_the_valid_ones(refuse):
    assert refuse(MINIMAL + "run:\n  zzz: 3\n") == (
        "run.yaml:8: run: unknown key 'zzz'; valid keys: mode"
    )


def test_unknown_section(refuse):
    assert refuse(MINIMAL + "bathcing: {}\n") == (
        "run.yaml:7: unknown key 'bathcing'; did you mean 'batching'?"
    )
    assert refuse("zzzz: 3\n" + MINIMAL) == (
        "run.yaml:1: unknown key 'zzzz'; valid keys: model, source, chunking, workers, batching, "
        "sink, storage, failure, run"
    )


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("model: {path: folder}\n", "run.yaml:1: model: missing required key 'path'"),
        ("  format: parquet\n", "run.yaml:2: source: missing required key 'format'"),
        ("  uri: corpus\n", "run.yaml:2: source: missing required key 'uri'"),
        ("sink:\n  uri: index\n", "run.yaml:1: sink: missing required key 'uri'"),
    ],
)
def test_missing_required_key(refuse, missing, message):
    assert refuse(MINIMAL.replace(missing, "")) == message


def test_required_keys_are_the_four_documented():
    required = [key.path for key in ALL_KEYS if key.required]
    assert required == ["model.path", "source.format", "source.uri", "sink.uri"]


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.path)
def test_null_only_where_the_key_is_nullable(load, refuse, key):
    if key.nullable:
        assert load(MINIMAL, f"{key.path}=null").to_dict()[key.section][key.name] is None
    else:
        assert refuse(MINIMAL, f"{key.path}=null").startswith(
            f"--set {key.path}=null: {key.path}: wanted {key.wanted}, got null"
        )


def test_duplicate_key_and_section(refuse):
    assert refuse(MINIMAL + "  uri: other\n") == (
        "run.yaml:7: sink: duplicate key 'uri'; first in line 6"
    )
    assert refuse(MINIMAL + "model: {}\n") == "run.yaml:7: duplicate key 'model'; first in line 1"


@pytest.mark.parametrize(
    ("body", "got"),
    [("", "null"), (" 3", "the integer 3"), (" [a]", "a list"), (" full", "the string 'full'")],
)
def test_section_that_is_no_mapping(refuse, body, got):
    assert refuse(MINIMAL + f"run:{body}\n") == (
        f"run.yaml:7: run: wanted a mapping of keys, got {got}; its keys: mode"
    )


def test_empty_section_takes_its_defaults(load):
    assert load(MINIMAL + "run: {}\n") == load(MINIMAL)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_empty_file(refuse, text):
    assert refuse(text).startswith("run.yaml:1: is empty; wanted the sections model, source, ")


@pytest.mark.parametrize(
    ("text", "place", "got"),
    [
        ("---\n", "run.yaml:2", "null"),
        ("\n- a\n", "run.yaml:2", "a list"),
        ("word\n", "run.yaml:1", "the string 'word'"),
    ],
)
def test_root_that_is_no_mapping(refuse, text, place, got):
    message = refuse(text)
    assert message.startswith(f"{place}: wanted the sections model, source")
    assert message.endswith(f"; got {got}")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("on: 1", "run.yaml:7: unknown key 'on'; did you mean 'run'?"),
        ("1: 1", "run.yaml:7: unknown key '1'; valid keys: model, "),
        ("? [a, b]\n: 1", "run.yaml:7: a key must be a word, got a list"),
        ("? {a: b}\n: 1", "run.yaml:7: a key must be a word, got a mapping"),
        ("run: {? [a] : 1}", "run.yaml:7: run: a key must be a word, got a list"),
    ],
)
def test_key_that_is_no_name(refuse, entry, message):
    assert refuse(MINIMAL + entry + "\n").startswith(message)


def test_long_names_are_cut(refuse):
    message = refuse(MINIMAL + "k" * 100 + ": 3\n")
    assert message.startswith(f"run.yaml:7: unknown key '{'k' * 57}...'; valid keys: ")


# Values that contradict each other


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "chunking:\n  overlap_tokens: 8\n",
            "run.yaml:8: chunking.overlap_tokens: 8 needs chunking.max_tokens, which is null",
        ),
        (
            "chunking:\n  overlap_tokens: 8\n  max_tokens: 8\n",
            "run.yaml:8: chunking.overlap_tokens: wanted less than chunking.max_tokens (8), got 8",
        ),
        (
            "storage:\n  endpoint: localhost:9000\n",
            (
                "run.yaml:8: storage.endpoint: wanted http://host or https://host, and no user or "
                "password: credentials come from the environment"
            ),
        ),
        ("storage:\n  endpoint: http://me:secret@host\n", "run.yaml:8: storage.endpoint: wanted"),
    ],
)
def test_contradictions_in_the_file(refuse, extra, message):
    got = refuse(MINIMAL + extra)
    assert got.startswith(message)
    assert "secret" not in got


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.prompt_text=a", "model.prompt=b"],
            "--set model.prompt_text=a: model.prompt_text: model.prompt is set too; keep one",
        ),
        (
            ["model.max_seq_len=128", "chunking.max_tokens=129"],
            (
                "--set chunking.max_tokens=129: chunking.max_tokens: wanted at most "
                "model.max_seq_len (128), got 129"
            ),
        ),
        (
            ["source.keep_columns=[lang, vector]"],
            (
                "--set source.keep_columns=[lang, vector]: source.keep_columns: 'vector' is the "
                "name of an output column of its own"
            ),
        ),
        (
            ["source.uri=[a, index/]"],
            "run.yaml:6: sink.uri: is source.uri too; the index needs a place of its own",
        ),
    ],
)
def test_contradictions_in_overrides(refuse, overrides, message):
    assert refuse(MINIMAL, *overrides).startswith(message)


def test_edges_that_do_not_contradict(load):
    config = load(MINIMAL, "model.max_seq_len=128", "chunking.max_tokens=128")
    assert config.chunking.max_tokens == 128
    assert load(MINIMAL, "chunking.max_tokens=1", "chunking.overlap_tokens=0") is not None
    assert load(MINIMAL, 'model.prompt_text=""', "model.prompt=null").model.prompt is None


# Overrides


def test_overrides_win_over_the_file_and_the_last_wins(load):
    config = load(MINIMAL, "sink.uri=one", "model.dim=8", "sink.uri=two", "source.uri=[a, 'b c']")
    assert config.sink.uri == "two"
    assert config.model.dim == 8
    assert config.source.uri == ("a", "b c")


def test_an_override_may_hold_equals_signs_and_dots(load):
    assert load(MINIMAL, "sink.uri=s3://b/a=1/x.y/").sink.uri == "s3://b/a=1/x.y/"


def test_an_override_supplies_a_required_key(load):
    assert load("source: {format: csv, uri: a}\n", "model.path=m", "sink.uri=s").model.path == "m"


def test_an_override_repairs_a_contradiction_but_not_a_wrong_value(load, refuse):
    clash = MINIMAL + "chunking: {overlap_tokens: 8}\n"
    assert load(clash, "chunking.max_tokens=9").chunking.overlap_tokens == 8
    wrong = MINIMAL + "chunking: {overlap_tokens: -8}\n"
    assert refuse(wrong, "chunking.overlap_tokens=1").startswith("run.yaml:7: chunking.overlap_")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "run={mode: full}",
            "--set run={mode: full}: 'run' is a section; set one of its keys: run.mode",
        ),
        ("run", "--set run: 'run' is a section; set one of its keys: run.mode"),
        ("run.mode", "--set run.mode: wanted section.key=value"),
        ("mode=full", "--set mode=full: wanted section.key=value"),
        ("", "--set : wanted section.key=value"),
        ("rum.mode=full", "--set rum.mode=full: unknown key 'rum'; did you mean 'run'?"),
        ("run.made=full", "--set run.made=full: run: unknown key 'made'; did you mean 'mode'?"),
        ("run.dim=8", "--set run.dim=8: run: unknown key 'dim'; did you mean 'model.dim'?"),
        ("run.mode.x=1", "--set run.mode.x=1: run: unknown key 'mode.x'; did you mean 'mode'?"),
        ("run.mode =full", "--set run.mode =full: run: unknown key 'mode '; did you mean 'mode'?"),
        ("run.mode=# full", "--set run.mode=# full: has no value; write null, or"),
        ("run.mode=[", "--set run.mode=[: YAML: while parsing a flow node, "),
        ("run.mode=@x", "--set run.mode=@x: YAML: while scanning for the next token, found"),
        ("run.mode=&a full", "--set run.mode=&a full: YAML: anchor &a is not supported"),
        ("run.mode=a\n---\nb", "--set 'run.mode=a\\n---\\nb': YAML: expected a single document"),
        ("run.mode=\udcff", "--set 'run.mode=\\udcff': holds the character 0xdcff"),
    ],
)
def test_wrong_overrides(refuse, override, message):
    assert refuse(MINIMAL, override).startswith(message)
