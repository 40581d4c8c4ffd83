"""Lines and JSON lines as blocks of rows; every refusal names file and line."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.text_input import read_blocks

line_texts = st.text(st.characters(exclude_characters="\r\n\ufeff", exclude_categories=["Cs"]))


def blocks(data, input_format="lines", block_rows=100, **keys):
    keys = {"text_key": "text", "id_key": "id"} | keys
    return list(
        read_blocks(io.BytesIO(data), "corpus", input_format, block_rows=block_rows, **keys)
    )


def rows(data, input_format="lines", **options):
    """(texts, ids) of all blocks together."""
    found = blocks(data, input_format, **options)
    ids = [i for block in found for i in block.ids or []]
    return [text for block in found for text in block.texts], ids


def json_lines(*objects):
    return b"".join(json.dumps(o).encode() + b"\n" for o in objects)


@given(st.lists(line_texts), st.sampled_from(["\n", "\r\n"]), st.integers(1, 5), st.booleans())
def test_any_lines_come_back_in_order_in_blocks_that_count_on(texts, end, block_rows, closed):
    data = end.join(texts) + (end if closed and texts else "")
    found = blocks(data.encode(), block_rows=block_rows)
    want = texts if closed or texts[-1:] != [""] else texts[:-1]
    assert [text for block in found for text in block.texts] == want
    assert [b.first_row for b in found] == list(range(0, len(want), block_rows))
    assert all(0 < len(b.texts) <= block_rows and b.ids is None for b in found)


@given(st.lists(st.tuples(st.text(), st.integers() | st.text())), st.integers(1, 5), st.booleans())
def test_any_json_lines_come_back_with_their_ids(pairs, block_rows, ascii_only):
    lines = [json.dumps({"id": i, "text": t}, ensure_ascii=ascii_only) for t, i in pairs]
    data = "\n".join(lines).encode("utf-8", "replace")
    if ascii_only:
        texts, ids = rows(data, "jsonl", block_rows=block_rows)
        assert list(zip(texts, ids)) == pairs
    else:
        assert len(rows(data, "jsonl", block_rows=block_rows)[0]) == len(pairs)


@pytest.mark.parametrize("input_format", ["lines", "jsonl"])
def test_empty_input_has_no_blocks(input_format):
    assert blocks(b"", input_format) == []


def test_empty_and_blank_lines_are_empty_and_blank_texts():
    assert rows(b"\n\r\n  \nx")[0] == ["", "", "  ", "x"]


def test_only_a_newline_ends_a_line():
    text = "a\x0bb\x0cc\x1cd\u2028e\u2029f\x85g\rh"
    assert rows(text.encode() + b"\nnext\n")[0] == [text, "next"]


def test_nul_and_tabs_are_kept():
    assert rows(b"a\x00b\t\n")[0] == ["a\x00b\t"]


def test_byte_order_mark_is_taken_off_the_first_line_only():
    assert rows(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")[0] == ["a", "\ufeffb"]
    assert rows(b'\xef\xbb\xbf{"text": "a"}\r\n', "jsonl")[0] == ["a"]


def test_very_long_line_is_one_row():
    text = "long " * 2_000_000
    assert rows(text.encode())[0] == [text]


@pytest.mark.parametrize("input_format", ["lines", "jsonl"])
def test_line_that_is_not_utf8_is_refused_by_file_line_and_byte(input_format):
    good = b'{"text": "x"}\n' * 5
    with pytest.raises(UsageError, match="^corpus:6: is not UTF-8: byte 0xE9 at 3$"):
        blocks(good + b"caf\xe9\n", input_format, block_rows=2)


@pytest.mark.parametrize("data", ["a\n".encode("utf-16"), b"\xed\xa0\x80\n", b"\xc0\x80\n"])
def test_other_encodings_are_refused(data):
    with pytest.raises(UsageError, match="^corpus:1: is not UTF-8"):
        blocks(data)


def test_json_lines_pass_over_blank_lines_and_need_no_last_newline():
    data = b'\n{"text": "a"}\r\n \t \r\n\n{"text": "b"}'
    assert rows(data, "jsonl")[0] == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    ["{", "text", '{"text": "a"} {"text": "b"}', "{'text': 'a'}", '{"text": "a",}', "[" * 100_000],
    ids=["open", "bare", "two", "quotes", "comma", "deep"],
)
def test_line_that_is_not_json_is_refused_by_line(line):
    with pytest.raises(UsageError, match="^corpus:2: is not JSON: "):
        blocks(b'{"text": "a"}\n' + line.encode() + b"\n", "jsonl")


@pytest.mark.parametrize(
    ("line", "kind"),
    [("[]", "list"), ('"text"', "str"), ("5", "int"), ("null", "NoneType"), ("NaN", "float")],
)
def test_line_that_is_no_object_is_refused_by_line(line, kind):
    with pytest.raises(UsageError, match=f"^corpus:3: wanted a JSON object, got {kind}$"):
        blocks(b'\n{"text": "a"}\n' + line.encode(), "jsonl")


def test_missing_text_key_is_refused_with_the_keys_that_are_there():
    with pytest.raises(UsageError, match="^corpus:1: has no key 'text'; its keys are 'Text', 'b'$"):
        blocks(json_lines({"Text": "a", "b": 1}), "jsonl")
    with pytest.raises(UsageError, match="its keys are none$"):
        blocks(b"{}", "jsonl")


def test_other_keys_can_be_named():
    data = json_lines({"body": "a", "doc": 7, "id": "no", "text": "no"})
    assert rows(data, "jsonl", text_key="body", id_key="doc") == (["a"], [7])


def test_last_of_two_equal_keys_counts():
    assert rows(b'{"text": "a", "text": "b", "id": 1, "id": 2}', "jsonl") == (["b"], [2])


def test_values_of_other_keys_do_not_matter():
    assert rows(b'{"x": NaN, "y": {"text": 5}, "text": "a"}', "jsonl") == (["a"], [])


@pytest.mark.parametrize("text", [None, 5, 1.5, True, ["a"], {"a": 1}])
def test_text_of_another_kind_is_left_for_the_tokenizer_to_refuse(text):
    assert rows(json_lines({"text": text}), "jsonl")[0] == [text]


def test_ids_are_strings_and_integers_of_any_size_and_null_is_none():
    ids = [0, -1, 10**40, "", "a", "\u65e5"]
    assert rows(json_lines(*({"id": i, "text": ""} for i in ids)), "jsonl")[1] == ids
    assert blocks(json_lines({"id": None, "text": "a"}, {"text": "b"}), "jsonl")[0].ids is None


@pytest.mark.parametrize("bad", [True, 1.5, [1], {}, float("nan")])
def test_id_of_another_kind_is_refused_by_line(bad):
    with pytest.raises(UsageError, match="^corpus:2: 'id' is .*, wanted a string or integer$"):
        blocks(json_lines({"text": "a", "id": 1}, {"text": "a", "id": bad}), "jsonl")


@pytest.mark.parametrize("block_rows", [1, 2, 3, 100])
@pytest.mark.parametrize("first", [True, False])
def test_ids_in_some_rows_only_are_refused_by_row_in_any_block(block_rows, first):
    with_id, without = {"text": "a", "id": "x"}, {"text": "a"}
    usual, odd = (with_id, without) if first else (without, with_id)
    with pytest.raises(UsageError, match="^corpus: row 4: 'id' is present in some rows only$"):
        blocks(json_lines(*[usual] * 4, odd), "jsonl", block_rows=block_rows)


def test_rows_before_a_bad_line_are_given_out_first():
    stream = io.BytesIO(b'{"text": "a"}\n{"text": "b"}\nbad\n')
    keys = {"text_key": "text", "id_key": "id", "block_rows": 2}
    given_out = read_blocks(stream, "corpus", "jsonl", **keys)
    assert next(given_out).texts == ["a", "b"]
    with pytest.raises(UsageError, match="^corpus:3: "):
        next(given_out)
