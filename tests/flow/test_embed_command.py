"""`rayvec embed`: what goes in, what comes out, what is refused and with which exit code."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.commands.embed
from drivers import choose_driver
from pipeline import Embedder
from pipeline.cli import main

ROOT = Path(__file__).parents[2]
PROGRAM = "from pipeline.cli import entry; entry()"
SMALL_BLOCKS = (
    "import pipeline.commands.embed as embed; embed.BLOCK_ROWS = 2; "
    "from pipeline.cli import entry; entry()"
)
FORMATS = ["jsonl", "npy", "parquet"]
TEXTS = ["the sea", "", "a man is eating"]


@pytest.fixture(scope="module")
def embedder(minilm):
    with Embedder.open(minilm) as opened:
        yield opened


@pytest.fixture
def embed(minilm, monkeypatch, capsysbinary):
    """A function: arguments and standard input -> (exit code, output bytes, error text)."""

    def run(*args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        words = ["embed", "--model", str(minilm), "--threads", "1", *map(str, args)]
        code = main(words)
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


def command(minilm, *args, program=PROGRAM, **options):
    """The command in a process of its own."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    words = [sys.executable, "-c", program, "embed", "--model", str(minilm), "--threads", "1"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60} | options
    return subprocess.run([*words, *map(str, args)], env=env | {"PYTHONPATH": str(ROOT)}, **options)


def json_lines(*objects):
    return b"".join(json.dumps(o).encode() + b"\n" for o in objects)


def vectors(out):
    return np.array([json.loads(line)["vector"] for line in out.splitlines()], dtype=np.float32)


def largest_difference(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def test_lines_in_json_lines_out_and_a_summary(embed, embedder):
    code, out, err = embed(stdin="\n".join(TEXTS).encode())
    done = embedder.embed(TEXTS)
    assert code == 0
    assert largest_difference(vectors(out), done.vectors) <= 1e-6
    rows = [json.loads(line) for line in out.splitlines()]
    assert [r["n_tokens"] for r in rows] == done.tokens.tolist()
    assert [r["truncated"] for r in rows] == [False] * 3
    assert re.fullmatch(
        rf"embedded 3 texts, {done.tokens.sum()} tokens, 0 cut at 256, as jsonl \(3, 384\) "
        rf"in \d+\.\d s: \d+ texts/s, driver {choose_driver()[0]}\n",
        err,
    )


def test_summary_counts_cut_texts_at_the_limit_asked_for(embed):
    code, out, err = embed("--max-seq-len", 5, stdin=b"a b c d\na b c\n")
    assert code == 0
    assert "embedded 2 texts, 10 tokens, 1 cut at 5," in err
    assert [json.loads(line)["truncated"] for line in out.splitlines()] == [True, False]


@pytest.mark.parametrize(
    "data",
    [
        b"the sea\n\na man is eating\n",
        b"the sea\r\n\r\na man is eating",
        b"\xef\xbb\xbfthe sea\n\na man is eating\n",
        b"the se\x00a\n \t \nA MAN\x07 is eating\n",
    ],
    ids=["lf", "crlf", "bom", "nul"],
)
def test_line_ends_byte_order_mark_and_control_characters_do_not_matter(embed, embedder, data):
    _, out, _ = embed(stdin=data)
    assert largest_difference(vectors(out), embedder.encode(TEXTS)) <= 1e-6


@pytest.mark.parametrize("ending", ["jsonl", "ndjson"])
def test_json_lines_file_is_known_by_its_ending_and_keeps_its_ids(embed, tmp_path, ending):
    ids = ["a", 7, "", 10**30, "\u65e5", "7"]
    path = tmp_path / f"in.{ending}"
    path.write_bytes(json_lines(*({"id": i, "text": "x", "other": None} for i in ids)))
    code, out, _ = embed("--input", path)
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ids


def test_input_format_and_keys_can_be_said(embed, embedder):
    data = json_lines({"body": "the sea", "doc": "d1", "text": "other"})
    _, out, _ = embed(
        "--input-format", "jsonl", "--text-key", "body", "--id-key", "doc", stdin=data
    )
    assert json.loads(out)["id"] == "d1"
    assert largest_difference(vectors(out), embedder.encode(["the sea"])) <= 1e-6


def test_very_long_line_is_one_row(embed):
    code, out, err = embed(stdin=b"word " * 200_000 + b"\n")
    assert code == 0
    assert json.loads(out)["n_tokens"] == 256
    assert "1 cut at 256" in err


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("data", [b"", b"\n\n"], ids=["empty", "blank"])
def test_empty_input_makes_an_empty_file(embed, tmp_path, file_format, data):
    path = tmp_path / f"out.{file_format}"
    code, out, err = embed("--output", path, "--input-format", "jsonl", stdin=data)
    assert (code, out) == (0, b"")
    assert f"embedded 0 texts, 0 tokens, 0 cut at 256, as {file_format} (0, 384)" in err
    assert path.is_file()


def test_npy_holds_the_vectors_in_order(embed, embedder, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline.commands.embed, "BLOCK_ROWS", 2)
    code, out, _ = embed("--output", tmp_path / "v.npy", stdin="\n".join(TEXTS).encode())
    assert (code, out) == (0, b"")
    array = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert array.dtype == np.float32
    assert largest_difference(array, embedder.encode(TEXTS)) <= 1e-5


def test_parquet_has_exact_types(embed, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline.commands.embed, "BLOCK_ROWS", 2)
    data = json_lines(*({"id": f"r{n}", "text": text} for n, text in enumerate(TEXTS)))
    code, _, _ = embed("--input-format", "jsonl", "--output", tmp_path / "v.parquet", stdin=data)
    assert code == 0
    table = pq.read_table(tmp_path / "v.parquet")
    assert dict(zip(table.schema.names, table.schema.types)) == {
        "id": pa.string(),
        "vector": pa.list_(pa.float32(), 384),
        "n_tokens": pa.int32(),
        "truncated": pa.bool_(),
    }
    assert table["id"].to_pylist() == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": 1}', "has no key 'text'; its keys are 'id'"),
        (b"[1]", "wanted a JSON object, got list"),
        (b'{"text": ', "is not JSON"),
        (b'{"text": "\xff"}', "is not UTF-8: byte 0xFF at 10"),
        (b'{"text": "a", "id": 1.5}', "'id' is 1.5, wanted a string or integer"),
    ],
)
def test_bad_line_is_refused_by_file_and_line(embed, tmp_path, line, reason):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
    code, _, err = embed("--input", path)
    assert code == 2
    assert err.startswith(f"rayvec: {path}:3: {reason}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("bad", ["null", "5", "NaN", '["a"]', '"\\ud800"', "-Infinity"])
@pytest.mark.parametrize("row", [0, 1, 5])
def test_bad_text_is_refused_by_its_row_in_any_block(embed, monkeypatch, bad, row):
    monkeypatch.setattr(pipeline.commands.embed, "BLOCK_ROWS", 2)
    data = b'{"text": "a"}\n' * row + f'{{"text": {bad}}}\n'.encode() + b'{"text": "b"}\n'
    code, out, err = embed("--input-format", "jsonl", stdin=data)
    assert code == 2
    assert err.startswith(f"rayvec: row {row}: ")
    assert len(vectors(out)) == row // 2 * 2


def test_integer_id_too_large_for_parquet_is_refused(embed, tmp_path):
    data = json_lines({"id": 2**63, "text": "a"})
    code, _, err = embed("--input-format", "jsonl", "--output", tmp_path / "v.parquet", stdin=data)
    assert code == 2
    assert str(2**63) in err
    assert list(tmp_path.iterdir()) == []


def test_mixed_ids_are_refused_for_parquet(embed, tmp_path):
    data = json_lines({"id": 1, "text": "a"}, {"id": "1", "text": "a"})
    code, _, err = embed("--input-format", "jsonl", "--output", tmp_path / "v.parquet", stdin=data)
    assert code == 2
    assert "ids are integers in some rows and strings in others" in err


def test_output_of_unknown_ending_is_refused_before_anything_is_opened(embed, tmp_path):
    code, _, err = embed("--output", tmp_path / "v.csv", "--model", "/nowhere", "--input", "/no")
    assert code == 2
    assert "wanted an ending of .jsonl, .ndjson, .npy, .parquet, or --format" in err


@pytest.mark.parametrize("place", ["folder.npy", "file/v.npy", "n" * 300 + ".npy"])
def test_output_that_cannot_be_written_is_refused_by_name(embed, tmp_path, place):
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    code, _, err = embed("--output", tmp_path / place, stdin=b"a\n")
    assert code == 2
    assert err.startswith(f"rayvec: output '{tmp_path / place}': cannot be written: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.npy"]


@pytest.mark.parametrize("kind", ["folder", "missing", "empty"])
def test_input_that_cannot_be_read_is_refused_by_name(embed, tmp_path, kind):
    name = {"folder": tmp_path, "missing": tmp_path / "gone.txt", "empty": ""}[kind]
    code, _, err = embed("--input", name, "--output", tmp_path / "v.npy")
    assert code == 2
    assert err.startswith(f"rayvec: input '{name}': cannot be read: ")
    assert list(tmp_path.iterdir()) == []


def test_input_may_be_the_output_too(embed, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json_lines({"id": 1, "text": "the sea"}))
    assert embed("--input", path, "--output", path)[0] == 0
    assert len(vectors(path.read_bytes())) == 1


@pytest.mark.parametrize("file_format", FORMATS)
def test_failing_input_leaves_the_old_output_and_one_line_of_error(minilm, tmp_path, file_format):
    path = tmp_path / f"v.{file_format}"
    path.write_bytes(b"old")
    data = b'{"id": 1, "text": "a"}\n' * 3 + b'{"id": 1, "text": null}\n'
    arguments = ("--input-format", "jsonl", "--output", path)
    done = command(minilm, *arguments, program=SMALL_BLOCKS, input=data)
    assert done.returncode == 2
    assert done.stderr == b"rayvec: row 3: wanted a string, got NoneType None\n"
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("file_format", ["jsonl", "npy"])
def test_reader_that_leaves_gets_no_traceback(minilm, tmp_path, file_format):
    (tmp_path / "in.txt").write_bytes(b"a\n" * 300)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        arguments = ("--input", tmp_path / "in.txt", "--format", file_format)
        done = command(minilm, *arguments, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("file_format", FORMATS)
def test_full_disk_is_refused_and_leaves_the_old_output(minilm, tmp_path, file_format):
    path = tmp_path / f"v.{file_format}"
    path.write_bytes(b"old")

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    done = command(minilm, "--output", path, input=b"a\nb\n", preexec_fn=small_files)
    assert done.returncode == 2
    assert re.fullmatch(rb"rayvec: output '.*': cannot be written: (?!None).+\n", done.stderr)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_full_disk_under_standard_output_gets_no_traceback(minilm, tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    with (tmp_path / "out").open("wb") as out:
        done = command(minilm, input=b"a\nb\n", stdout=out, preexec_fn=small_files)
    assert done.returncode in (1, 2)
    assert re.fullmatch(rb"rayvec: .*cannot be written: .+\n", done.stderr)


@pytest.mark.parametrize("stream", [0, 1])
def test_closed_standard_streams_get_no_traceback(minilm, stream):
    done = command(minilm, stdin=subprocess.DEVNULL, preexec_fn=lambda: os.close(stream))
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"rayvec: " + (b"output" if stream else b"input"))


def test_failure_to_read_is_blamed_on_the_input(minilm, tmp_path):
    with (tmp_path / "write-only").open("wb") as stdin:
        done = command(minilm, "--output", tmp_path / "v.npy", stdin=stdin)
    assert done.returncode == 2
    assert done.stderr.startswith(b"rayvec: input '-': cannot be read: ")
    assert [p.name for p in tmp_path.iterdir()] == ["write-only"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--threads", "0"], "threads is 0, wanted at least 1"),
        (["--threads", "-3"], "threads is -3, wanted at least 1"),
        (["--dim", "0"], "dim is 0, wanted 1 to 384"),
        (["--dim", "385"], "dim is 385, wanted 1 to 384"),
        (["--max-seq-len", "2"], "max_seq_len is 2, wanted more than the 2 special tokens"),
        (["--max-seq-len", "513"], "max_seq_len is 513, wanted 1 to 512"),
        (["--driver", "gpu:0"], "no driver 'gpu:0' in this build, have auto, cuda, cpu, numpy"),
        (
            ["--driver", "nonsense"],
            "no driver 'nonsense' in this build, have auto, cuda, cpu, numpy",
        ),
        (["--prompt", "query"], "has no prompt 'query'; it has none"),
        (["--prompt", "a", "--prompt-text", "b"], "prompt and prompt_text are both given"),
        (["--model", ""], "model ''"),
        (["--model", "/nowhere/at/all"], "model '/nowhere/at/all' is no folder"),
        (["--model", "~no-such-user-here/m"], "model '~no-such-user-here/m'"),
        (["--model", str(ROOT / "pyproject.toml")], "is a file, not a folder"),
    ],
)
def test_wrong_setting_is_refused_with_exit_code_two_and_one_line(embed, arguments, reason):
    code, out, err = embed(*arguments, stdin=b"a\n")
    assert (code, out) == (2, b"")
    assert err.startswith("rayvec: ")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "required"),
        (["nonsense"], "nonsense"),
        (["embed"], "--model"),
        (["embed", "--model", "m", "--nonsense"], "--nonsense"),
        (["embed", "--model", "m", "--threads", "two"], "two"),
        (["embed", "--model", "m", "--dtype", "float64"], "bfloat16"),
        (["embed", "--model", "m", "--pooling", "median"], "mean"),
        (["embed", "--model", "m", "--format", "csv"], "parquet"),
        (["embed", "--model", "m", "--input-format", "csv"], "jsonl"),
    ],
)
def test_wrong_usage_exits_with_two_and_says_what_there_is(capsys, arguments, reason):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err


def test_cut_vectors_have_norm_one_again(embed, embedder):
    _, out, err = embed("--dim", 64, stdin=b"the sea\n")
    whole = embedder.encode(["the sea"])[:, :64]
    assert "(1, 64)" in err
    assert largest_difference(vectors(out), whole / np.linalg.norm(whole)) < 1e-6


def test_vectors_without_normalisation_have_the_same_direction(embed, embedder):
    _, out, _ = embed("--no-normalize", stdin=b"the sea\n")
    raw = vectors(out)
    assert np.linalg.norm(raw) > 1.5
    assert largest_difference(raw / np.linalg.norm(raw), embedder.encode(["the sea"])) < 1e-6


def test_pooling_asked_for_is_used(embed, embedder, minilm):
    _, out, _ = embed("--pooling", "cls", stdin=b"the sea\n")
    with Embedder.open(minilm, pooling="cls") as first:
        assert largest_difference(vectors(out), first.encode(["the sea"])) < 1e-6
    assert largest_difference(vectors(out), embedder.encode(["the sea"])) > 1e-2


def test_float16_storage_is_used(embed, embedder):
    code, out, _ = embed("--dtype", "float16", stdin=b"the sea\n")
    assert code == 0
    assert 0 < largest_difference(vectors(out), embedder.encode(["the sea"])) < 5e-3


def test_prompt_text_is_put_before_each_text(embed, embedder):
    _, out, _ = embed("--prompt-text", "search: ", stdin=b"sea\n\n")
    assert largest_difference(vectors(out), embedder.encode(["search: sea", "search: "])) <= 1e-6


def test_model_may_be_relative_and_end_in_a_slash(embed, embedder, minilm, monkeypatch):
    monkeypatch.chdir(minilm.parent)
    _, out, _ = embed("--model", "./model/", stdin=b"the sea\n")
    assert largest_difference(vectors(out), embedder.encode(["the sea"])) <= 1e-6


def test_verbose_says_which_driver_and_why(minilm):
    program = PROGRAM.replace("entry()", "sys.argv.insert(1, '--verbose'); entry()")
    done = command(minilm, program=f"import sys; {program}", input=b"a\n")
    assert done.returncode == 0
    assert f"INFO drivers: driver {choose_driver()[0]}: ".encode() in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"embedded 1 texts")
