"""Text to encodings with MiniLM's own tokenizer: limits, truncation, refusals by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arch import CheckpointError, read_checkpoint
from pipeline.errors import TextError, UsageError
from pipeline.tokenizer import Tokenizer

CLS, SEP, UNK = 101, 102, 100
VOCAB_SIZE = 30522


@pytest.fixture(scope="module")
def settings(minilm):
    return read_checkpoint(minilm).tokenizer


@pytest.fixture(scope="module")
def tokenizer(settings):
    return Tokenizer(settings, max_seq_len=256, vocab_size=VOCAB_SIZE)


def ids(tokenizer, *texts, **options):
    return [e.input_ids.tolist() for e in tokenizer.encode(texts, **options).encodings]


def test_known_words_have_known_ids(tokenizer):
    assert ids(tokenizer, "hello world") == [[CLS, 7592, 2088, SEP]]


def test_baked_in_truncation_and_padding_are_undone_and_reported(tokenizer):
    assert tokenizer.undone == ("truncation at 128", "padding to 128")
    short, long = tokenizer.encode(["a", "a " * 200]).lengths
    assert (short, long) == (3, 202)


@pytest.mark.parametrize(("words", "tokens", "cut"), [(253, 255, False), (254, 256, False)])
def test_text_up_to_the_limit_is_whole(tokenizer, words, tokens, cut):
    done = tokenizer.encode(["a " * words])
    assert (done.lengths.tolist(), done.truncated.tolist()) == ([tokens], [cut])


def test_one_token_above_the_limit_is_cut_and_says_so(tokenizer):
    done = tokenizer.encode(["a " * 254, "a " * 255, "b"])
    assert done.lengths.tolist() == [256, 256, 3]
    assert done.truncated.tolist() == [False, True, False]


def test_truncation_keeps_the_first_tokens_and_the_closing_special_one(settings):
    words = " ".join(f"w{i}" for i in range(100))
    whole = ids(Tokenizer(settings, max_seq_len=512, vocab_size=VOCAB_SIZE), words)[0]
    cut = ids(Tokenizer(settings, max_seq_len=20, vocab_size=VOCAB_SIZE), words)[0]
    assert cut == [*whole[:19], SEP]


def test_left_truncation_keeps_the_last_tokens(settings):
    words = " ".join(f"w{i}" for i in range(100))
    left = replace(settings, truncation_side="left")
    whole = ids(Tokenizer(settings, max_seq_len=512, vocab_size=VOCAB_SIZE), words)[0]
    cut = ids(Tokenizer(left, max_seq_len=20, vocab_size=VOCAB_SIZE), words)[0]
    assert cut == [CLS, *whole[-19:]]


@pytest.mark.parametrize("limit", [-1, 0, 1, 2])
def test_limit_without_room_beside_the_special_tokens_is_refused(settings, limit):
    with pytest.raises(UsageError, match=f"max_seq_len is {limit}, .* 2 special tokens"):
        Tokenizer(settings, max_seq_len=limit, vocab_size=VOCAB_SIZE)


def test_limit_of_three_keeps_one_token(settings):
    smallest = Tokenizer(settings, max_seq_len=3, vocab_size=VOCAB_SIZE)
    assert ids(smallest, "hello world", "") == [[CLS, 7592, SEP], [CLS, SEP]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "wanted a string, got NoneType None"),
        (5, "wanted a string, got int 5"),
        (1.5, "wanted a string, got float 1.5"),
        (True, "wanted a string, got bool True"),
        (b"bytes", "wanted a string, got bytes b'bytes'"),
        (["a"], r"wanted a string, got list \['a'\]"),
        ({"a": 1}, "wanted a string, got dict"),
        ("\ud800", r"holds the lone surrogate U\+D800"),
        ("ok \udfff ok", r"holds the lone surrogate U\+DFFF"),
    ],
    ids=["null", "int", "float", "bool", "bytes", "list", "dict", "high", "low"],
)
@pytest.mark.parametrize("row", [0, 1, 2])
def test_bad_text_is_refused_by_its_row(tokenizer, text, reason, row):
    texts = ["fine", "also fine"]
    texts.insert(row, text)
    with pytest.raises(TextError, match=f"^row {row}: {reason}") as caught:
        tokenizer.encode(texts)
    assert caught.value.row == row


def test_integer_too_long_to_print_is_refused_by_its_row(tokenizer):
    with pytest.raises(TextError, match="^row 1: wanted a string, got int"):
        tokenizer.encode(["fine", 10**5000])


def test_refusal_quotes_only_the_start_of_a_large_value(tokenizer):
    with pytest.raises(TextError) as caught:
        tokenizer.encode([["long"] * 100_000])
    assert len(str(caught.value)) < 100


def test_no_texts_give_no_encodings(tokenizer):
    done = tokenizer.encode([])
    assert done.encodings == []
    assert done.lengths.shape == done.truncated.shape == (0,)


@pytest.mark.parametrize("text", ["", " ", "\t\r\n", "\u00a0\u3000", "\x00", "\u200b", "\ufeff"])
def test_blank_text_is_the_two_special_tokens(tokenizer, text):
    assert ids(tokenizer, text) == [[CLS, SEP]]


def test_nul_and_control_characters_vanish_and_case_and_accents_do_not_matter(tokenizer):
    plain, odd = ids(tokenizer, "cafe world", "CAF\u00c9 w\x00or\x07ld")
    assert odd == plain


def test_special_token_text_is_read_as_the_special_token(tokenizer):
    assert ids(tokenizer, "[SEP]") == [[CLS, SEP, SEP]]


def test_word_beyond_the_word_piece_limit_is_one_unknown_token(tokenizer):
    done = tokenizer.encode(["a" * 200_000])
    assert done.encodings[0].input_ids.tolist() == [CLS, UNK, SEP]
    assert done.truncated.tolist() == [False]


def test_astral_and_combining_characters_do_not_fail(tokenizer):
    texts = ["\U0001f600" * 10, "e\u0301" * 10, "\u202eabc", "\uffff", "\U0010ffff"]
    assert (tokenizer.encode(texts).lengths >= 2).all()


def test_prompt_is_put_before_the_text_with_nothing_between(tokenizer):
    with_prompt, joined = ids(tokenizer, "llo", prompt="he")[0], ids(tokenizer, "hello")[0]
    assert with_prompt == joined


def test_prompt_that_fills_the_limit_leaves_the_closing_token_to_pool(tokenizer):
    done = tokenizer.encode(["text"], prompt="word " * 300, pool_prompt=False)
    assert (len(done.encodings[0]), done.encodings[0].pool_skip) == (256, 255)


def test_prompt_counts_toward_the_limit(tokenizer):
    done = tokenizer.encode(["a " * 200], prompt="word " * 100)
    assert (done.lengths.tolist(), done.truncated.tolist()) == ([256], [True])


def test_ids_are_int32_and_types_are_left_out_where_all_zero(tokenizer):
    encoding = tokenizer.encode(["hello"]).encodings[0]
    assert encoding.input_ids.dtype == np.int32
    assert encoding.type_ids is None
    assert encoding.pool_skip == 0


def test_lower_text_setting_lowers_before_the_tokenizer(settings):
    cased = replace(settings, normalizer={"lowercase": False}, lower_text=False)
    lowered = replace(cased, lower_text=True)
    plain, upper = "hello", "HELLO"
    as_is = Tokenizer(cased, max_seq_len=16, vocab_size=VOCAB_SIZE)
    lowering = Tokenizer(lowered, max_seq_len=16, vocab_size=VOCAB_SIZE)
    assert ids(as_is, upper) != ids(as_is, plain)
    assert ids(lowering, upper) == ids(as_is, plain)


def test_token_beyond_the_models_rows_is_refused_by_name(settings):
    with pytest.raises(CheckpointError, match=r"the id 30521, .* only 30521 token rows"):
        Tokenizer(settings, max_seq_len=16, vocab_size=VOCAB_SIZE - 1)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"model": 5}', "\x00"])
def test_damaged_tokenizer_file_is_refused_by_name(settings, tmp_path, content):
    file = tmp_path / "tokenizer.json"
    file.write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a readable tokenizer"):
        Tokenizer(replace(settings, file=file), max_seq_len=16, vocab_size=VOCAB_SIZE)


def test_missing_or_unreadable_tokenizer_file_is_refused_by_name(settings, tmp_path):
    for file in (tmp_path / "gone.json", tmp_path):
        with pytest.raises(CheckpointError, match=f"{file}: cannot be read"):
            Tokenizer(replace(settings, file=file), max_seq_len=16, vocab_size=VOCAB_SIZE)
