"""The configuration: YAML that is refused, values that are not converted, and random input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_file import ALL_KEYS, HASHES, MINIMAL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import ConfigError, RunConfig, fingerprint, load_config
from pipeline.strict_yaml import MAX_FILE_BYTES

# YAML itself


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "run: {mode: full\n",
            "run.yaml:8: YAML: while parsing a flow mapping, expected ',' or '}'",
        ),
        ("run:\n\tmode: full\n", "run.yaml:8: YAML: while scanning for the next token, found char"),
        ("run: a: b\n", "run.yaml:7: YAML: mapping values are not allowed here"),
        (
            "run: {mode: 'full}\n",
            "run.yaml:8: YAML: while scanning a quoted scalar, found unexpected",
        ),
        ("---\nrun: {}\n", "run.yaml:7: YAML: expected a single document in the stream, but found"),
        ('run: {mode: "\\UFFFFFFFF"}\n', "run.yaml:7: YAML: a number out of range: "),
        ("run: {mode: \x07}\n", "run.yaml:7: holds the character 0x7, which YAML does not allow"),
        ("run: &a {}\n", "run.yaml:7: YAML: anchor &a is not supported; write the value where it"),
        ("run: *a\n", "run.yaml:7: YAML: alias *a is not supported; write the value out"),
        ("run:\n  <<: {mode: full}\n", "run.yaml:8: run: merge key << is not supported; write the"),
        ("<<: {run: {}}\n", "run.yaml:7: merge key << is not supported; write the keys out"),
        ("run: {mode: !!str full}\n", "run.yaml:7: YAML: tag 'tag:yaml.org,2002:str' is not supp"),
        (
            "run: !!python/object:os.system {}\n",
            "run.yaml:7: YAML: tag 'tag:yaml.org,2002:python/o",
        ),
        (
            "run: {mode: ! full}\n",
            "run.yaml:7: YAML: tag '!' is not supported; write a plain value",
        ),
        ("run: " + "[" * 5000 + "\n", "run.yaml:7: YAML: nested deeper than 8 levels"),
        ("run: " + "{a: " * 5000 + "\n", "run.yaml:7: YAML: nested deeper than 8 levels"),
    ],
)
def test_what_yaml_itself_refuses(refuse, extra, message):
    assert refuse(MINIMAL + extra).startswith(message)


def test_billion_laughs_is_refused_at_the_first_anchor(refuse):
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"
    assert refuse(bomb).startswith("run.yaml:1: YAML: anchor &a is not supported")


def test_file_that_is_not_utf8(refuse):
    assert refuse(MINIMAL.encode() + b"# caf\xe9\n").startswith("run.yaml:7: is not UTF-8: ")
    assert refuse(MINIMAL.encode("utf-16")).startswith("run.yaml:1: is not UTF-8: ")


def test_file_that_cannot_be_read(write, tmp_path):
    write(MINIMAL)
    for path, reason in [
        ("absent.yaml", "absent.yaml: cannot be read: No such file or directory"),
        (".", ".: cannot be read: Is a directory"),
        ("a\0b", "a\0b: cannot be read: embedded null byte"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(reason)):
            load_config(path)
    assert load_config(tmp_path / "run.yaml") == load_config("run.yaml")


def test_file_above_the_size_limit(refuse):
    message = refuse(MINIMAL + "#" * MAX_FILE_BYTES)
    assert message == f"run.yaml: is above {MAX_FILE_BYTES} bytes"


# Values: what YAML reads as something else is never converted


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("123", "the integer 123"),
        ("007", "the integer 007"),
        ("008", "the integer 008"),
        ("0x1F", "the integer 0x1F"),
        ("0o17", "the integer 0o17"),
        ("0b11", "the integer 0b11"),
        ("1_000", "the integer 1_000"),
        ("12:30:45", "the integer 12:30:45"),
        ("-5", "the integer -5"),
        ("1.10", "the float 1.10"),
        ("1e3", "the float 1e3"),
        ("1E-3", "the float 1E-3"),
        ("1.5e+3", "the float 1.5e+3"),
        (".inf", "the float .inf"),
        (".NaN", "the float .NaN"),
        ("no", "the boolean no"),
        ("On", "the boolean On"),
        ("true", "the boolean true"),
        ("2024-01-31", "the date 2024-01-31"),
        ("2024-01-31 10:00:00", "the date 2024-01-31 10:00:00"),
        ("=", "the special value ="),
        ("<<", "the special value <<"),
    ],
)
def test_a_string_key_asks_to_quote_what_is_no_string(load, refuse, text, got):
    end = f'got {got}; quote it: "{text}"'
    column = MINIMAL.replace("  uri: corpus", f"  uri: corpus\n  id_column: {text}")
    assert refuse(column) == f"run.yaml:5: source.id_column: wanted a string, {end}"
    listed = MINIMAL.replace("  uri: corpus", f"  uri:\n  - corpus\n  - {text}")
    assert refuse(listed) == (
        f"run.yaml:6: source.uri: wanted a string or a list of strings, {end}"
    )
    assert refuse(MINIMAL, f"model.prompt={text}").endswith(f"wanted a string or null, {end}")
    assert load(MINIMAL, f'source.id_column="{text}"').source.id_column == text


@pytest.mark.parametrize("text", ["y", "nan", "inf", "1.2.3", "e3", "0x", "a1", "id-1", "2024-01"])
def test_a_plain_word_is_a_string(load, text):
    assert load(MINIMAL, f"source.id_column={text}").source.id_column == text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("source.id_column=", 'has no value; write null, or "" for an empty string'),
        ("source.id_column=''", "source.id_column: wanted a string, got an empty string"),
        ("source.id_column=~", "source.id_column: wanted a string, got null"),
        ("source.id_column=[a]", "source.id_column: wanted a string, got a list"),
        (
            "model.prompt_text=query: ",
            (
                "model.prompt_text: wanted a string or null, got a mapping; "
                'quote a text that holds ": "'
            ),
        ),
        ('model.path="a\\0b"', "model.path: holds the character 0x0"),
        ('model.path="\\ud800"', "model.path: holds the character 0xd800"),
        ("source.uri=[]", "source.uri: wanted a string or a list of strings, got []"),
        ("source.uri=[a, a]", "source.uri: 'a' is listed twice"),
        (
            "source.keep_columns=lang",
            "source.keep_columns: wanted a list of strings, got the string 'lang'; write [\"lang\"",
        ),
        ("source.keep_columns=[[a]]", "source.keep_columns: wanted a list of strings, got a list"),
        (
            "source.keep_columns=[no]",
            'source.keep_columns: wanted a list of strings, got the boolean no; quote it: "no"',
        ),
        (
            "source.format=parquett",
            (
                "source.format: wanted one of parquet, jsonl, csv, text, python, "
                "got the string 'parquett'; did you mean 'parquet'?"
            ),
        ),
        (
            "source.format=Parquet",
            (
                "source.format: wanted one of parquet, jsonl, csv, text, python, "
                "got the string 'Parquet'; did you mean 'parquet'?"
            ),
        ),
        ("run.mode=zzz", "run.mode: wanted one of incremental, full, got the string 'zzz'"),
        ("failure.bad_rows=no", "failure.bad_rows: wanted one of dead_letter, fail, got the boo"),
        (
            "workers.driver=null",
            (
                "workers.driver: wanted one of auto, cpu, numpy, null, cuda, got null; "
                'quote it: "null"'
            ),
        ),
        (
            "model.pooling=last_token",
            (
                "model.pooling: wanted one of cls, max, mean, mean_sqrt_len_tokens, weightedmean, "
                "lasttoken or null, got the string 'last_token'; did you mean 'lasttoken'?"
            ),
        ),
        ("model.dim=true", "model.dim: wanted an integer >= 1 or null, got the boolean true"),
        ("model.dim='8'", "model.dim: wanted an integer >= 1 or null, got the string '8'"),
        ("model.dim=8.0", "model.dim: wanted an integer >= 1 or null, got the float 8.0"),
        ("model.dim=1e3", "model.dim: wanted an integer >= 1 or null, got the float 1e3"),
        ("model.dim=0", "model.dim: wanted an integer >= 1 or null, got the integer 0"),
        ("model.dim=-1", "model.dim: wanted an integer >= 1 or null, got the integer -1"),
        (
            "model.dim=1_000",
            (
                "model.dim: wanted an integer >= 1 or null, got the integer 1_000; "
                "write it in plain decimal digits, at most 9223372036854775807"
            ),
        ),
        ("model.dim=010", "model.dim: wanted an integer >= 1 or null, got the integer 010; write"),
        ("model.dim=1:30", "model.dim: wanted an integer >= 1 or null, got the integer 1:30; wr"),
        (
            "model.dim=9223372036854775808",
            (
                "model.dim: wanted an integer >= 1 or null, got the integer 9223372036854775808; "
                "write it in plain decimal digits, at most 9223372036854775807"
            ),
        ),
        ("model.dim=" + "9" * 9000, "model.dim: wanted an integer >= 1 or null, got the integer 9"),
        ("model.normalize=on", "model.normalize: wanted true or false or null, got the boolean on"),
        ("model.normalize=1", "model.normalize: wanted true or false or null, got the integer 1"),
        ("model.normalize='true'", "model.normalize: wanted true or false or null, got the str"),
        ("workers.count=0", "workers.count: wanted auto or an integer >= 1, got the integer 0"),
        (
            "workers.count=autom",
            (
                "workers.count: wanted auto or an integer >= 1, got the string 'autom'; "
                "did you mean 'auto'?"
            ),
        ),
        ("workers.cpus_per_worker=0", "workers.cpus_per_worker: wanted a number > 0, got the in"),
        ("workers.cpus_per_worker=true", "workers.cpus_per_worker: wanted a number > 0, got the b"),
        (
            "workers.cpus_per_worker=.inf",
            (
                "workers.cpus_per_worker: wanted a number > 0, got the float .inf; "
                "write a finite number in plain decimal digits"
            ),
        ),
        ("workers.cpus_per_worker=.nan", "workers.cpus_per_worker: wanted a number > 0, got the f"),
        ("workers.cpus_per_worker=1e999", "workers.cpus_per_worker: wanted a number > 0, got the "),
        ("workers.cpus_per_worker=nan", "workers.cpus_per_worker: wanted a number > 0, got the st"),
        (
            "failure.max_bad_fraction=1.01",
            "failure.max_bad_fraction: wanted a number >= 0 and <= 1, got the float 1.01",
        ),
        ("failure.max_bad_fraction=-0.1", "failure.max_bad_fraction: wanted a number >= 0 and <="),
        ("failure.max_shard_retries=-1", "failure.max_shard_retries: wanted an integer >= 0, got"),
    ],
    ids=lambda text: text[:40],
)
def test_wrong_values(refuse, override, message):
    got = refuse(MINIMAL, override)
    assert got.startswith(f"--set {override}: {message}")


def test_wrong_value_in_the_file_names_its_line(refuse):
    text = MINIMAL + "workers:\n  driver: cpu\n  count:\n    many\n"
    assert refuse(text) == (
        "run.yaml:10: workers.count: wanted auto or an integer >= 1, got the string 'many'"
    )


# Nothing but ConfigError


def is_one_line(message: str) -> bool:
    return len(message.splitlines()) == 1 and message.startswith(("run.yaml", "--set "))


def load_or_refuse(text: str | bytes, overrides: list[str]) -> None:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    Path("run.yaml").write_bytes(data)
    try:
        config = load_config("run.yaml", overrides)
    except ConfigError as error:
        assert is_one_line(str(error))
    else:
        assert isinstance(config, RunConfig)
        fingerprint(config, **HASHES)


FRAGMENTS = [
    *("model: ", "source: ", "path", "uri: ", "{", "}", "[", "]", "- ", "? ", ": ", ", ", "\n"),
    *("\n  ", "&a ", "*a", "<<: ", "!!str ", "!<", "%YAML 1.1\n", "%TAG ! x\n", "---\n", "...\n"),
    *('"', "'", "|\n", ">-\n", "#", "\\", '"\\x4"', '"\\U00110000"', '"\\ud800"', "\t", "\x85"),
    *("0x", "1_0", "1e3", "1:30", "2024-01-01", ".nan", "no", "null", "~", "=", "\u2028", "@"),
]
QUICK = settings(
    max_examples=300,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@QUICK
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(FRAGMENTS)).map("".join)))
def test_any_text_loads_or_is_refused_in_one_line(write, text):
    load_or_refuse(text, [])
    load_or_refuse(MINIMAL + text, [])


@QUICK
@given(st.binary(max_size=60))
def test_any_bytes_load_or_are_refused_in_one_line(write, data):
    load_or_refuse(MINIMAL.encode() + data, [])


@QUICK
@given(
    st.sampled_from([key.path for key in ALL_KEYS]),
    st.one_of(st.text(max_size=40), st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)),
)
def test_any_override_loads_or_is_refused_in_one_line(write, path, text):
    load_or_refuse(MINIMAL, [f"{path}={text}"])


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@QUICK
@given(st.dictionaries(st.sampled_from(ALL_KEYS), JSON_VALUES, min_size=1, max_size=3))
def test_any_values_load_as_they_are_or_are_refused(write, chosen):
    tree: dict[str, Any] = yaml.safe_load(MINIMAL)
    for key, value in chosen.items():
        tree.setdefault(key.section, {})[key.name] = value
    Path("run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    try:
        config = load_config("run.yaml")
    except ConfigError as error:
        assert is_one_line(str(error))
        return
    for key, value in chosen.items():
        got = config.to_dict()[key.section][key.name]
        assert got == ([value] if key.single and isinstance(value, str) else value)
        assert not isinstance(value, bool) or got is value
