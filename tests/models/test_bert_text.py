"""From text to token ids: NUM-24 (limits), NUM-25 (lowering) and NUM-29 (cleaning)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from catalogue import CASE_TEXTS, COUNTED_WORDS, LETTER_CASE, LIMITS, SHORT, SHORT_TEXTS
from folders import IDS, TinyBert
from goldens import largest
from tokenizers import Tokenizer

from pipeline.errors import UsageError

CLS, SEP, UNK = 101, 102, 100

# (text, a spelling that must give the same ids)
SAME_IDS = {
    "precomposed accent": ("Café", "cafe"),
    "combining accent": ("Cafe\u0301", "cafe"),
    "diaeresis": ("naïve", "naive"),
    "NUL": ("a\x00b", "ab"),
    "zero-width space": ("a\u200bb", "ab"),
    "right-to-left override": ("\u202ehello", "hello"),
    "replacement character": ("hel\ufffdlo", "hello"),
    "no-break space": ("hello\u00a0world", "hello world"),
    "CJK is split": ("中文hello", "中 文 hello"),
    "voiced mark": ("ザ", "サ"),
    "Hangul": ("안", "\u110b\u1161\u11ab"),
    "empty": ("", " \n\t "),
}

LISTED = (
    *(text for pair in SAME_IDS.values() for text in pair),
    "x" * 100,
    "x" * 101,
    "Straße",
    "strasse",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 end",
    "كُلَّ يَوْمٍ",
    "İstanbul ISTANBUL",
    "\u3000ideographic\u2028line\u0085next",
    "\ufeffbyte order mark",
    "[CLS] [SEP] [PAD] [UNK] [MASK] [cls]",
)


@pytest.mark.parametrize("name", LIMITS)
def test_num_24_limits_match_the_reference(check_case, name):
    check_case(name)


def test_num_24_the_declared_limit_replaces_the_baked_in_one(folder_of, open_embedder):
    embedder = open_embedder(folder_of(SHORT))
    done = embedder.embed(list(SHORT_TEXTS))
    assert embedder.max_seq_len == 16
    assert done.tokens.tolist() == [3, 8, 9, 16, 16, 16]
    assert done.truncated.tolist() == [False, False, False, False, True, True]
    for encoding in embedder.tokenize(list(SHORT_TEXTS)).encodings:
        ids = encoding.input_ids.tolist()
        assert (ids[0], ids[-1]) == (IDS["[CLS]"], IDS["[SEP]"])
        assert IDS["[PAD]"] not in ids


def test_num_24_texts_equal_up_to_the_limit_embed_the_same(embed_spec):
    words = list(COUNTED_WORDS[:20])
    beyond, within = list(words), list(words)
    beyond[16] = "sentence"
    within[11] = "sentence"
    first, second, third = embed_spec(SHORT, [" ".join(w) for w in (words, beyond, within)])
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)
    assert largest(first, third) > 1e-2


@pytest.mark.parametrize(
    ("declared", "rows", "limit"),
    [(16, 32, 16), (32, 32, 32), (64, 32, 32), (None, 32, 32), (3, 32, 3), (10**6, 40, 40)],
)
def test_num_24_the_limit_is_the_smaller_of_declared_and_position_rows(
    folder_of, open_embedder, declared, rows, limit
):
    spec = replace(SHORT, max_seq_length=declared, positions=rows)
    embedder = open_embedder(folder_of(spec))
    assert embedder.max_seq_len == limit
    done = embedder.embed([" ".join(COUNTED_WORDS * 3)])
    assert done.tokens.tolist() == [limit]
    assert np.isfinite(done.vectors).all()


@pytest.mark.parametrize("asked", [3, 9, 16, 17, 32])
def test_num_24_a_limit_may_be_asked_for_up_to_the_position_rows(folder_of, open_embedder, asked):
    embedder = open_embedder(folder_of(SHORT), max_seq_len=asked)
    assert embedder.embed([SHORT_TEXTS[-1]]).tokens.tolist() == [asked]


@pytest.mark.parametrize("asked", [-1, 0, 1, 2, 33, 512])
def test_num_24_a_limit_that_cannot_be_kept_is_refused(folder_of, open_embedder, asked):
    with pytest.raises(UsageError, match=f"max_seq_len is {asked}, wanted"):
        open_embedder(folder_of(SHORT), max_seq_len=asked)


def test_num_24_a_huge_model_max_length_declares_nothing(folder_of, open_embedder):
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 10**30}
    spec = replace(SHORT, max_seq_length=None, tokenizer_config=config)
    assert open_embedder(folder_of(spec)).max_seq_len == SHORT.positions


@pytest.mark.parametrize("name", LETTER_CASE)
def test_num_25_letter_case_matches_the_reference(check_case, name):
    check_case(name)


def test_num_25_do_lower_case_false_leaves_the_tokenizers_own_lowering_on(folder_of, open_embedder):
    ids = _ids(open_embedder(folder_of(TinyBert(do_lower_case=False))), CASE_TEXTS)
    assert ids["HELLO World"] == ids["hello world"]
    assert IDS["[UNK]"] not in ids["HELLO World"]


def test_num_25_do_lower_case_true_lowers_the_text_as_python_does(folder_of, open_embedder):
    lowering = open_embedder(folder_of(TinyBert(cased=True, do_lower_case=True)))
    plain = open_embedder(folder_of(TinyBert(cased=True)))
    ids = _ids(lowering, CASE_TEXTS)
    assert ids["HELLO"] == ids["hello"]
    lowered = _ids(plain, [text.lower() for text in CASE_TEXTS])
    assert ids == {text: lowered[text.lower()] for text in CASE_TEXTS}
    assert IDS["##\u0307"] in ids["İx"]  # U+0130 becomes i and a combining dot
    assert IDS["##ß"] in ids["Straße"]


@pytest.mark.parametrize("text", LISTED)
def test_num_29_listed_strings_have_the_librarys_ids(minilm, minilm_tokens, text):
    assert minilm_tokens([text]) == [_library(minilm).encode(text).ids]


@pytest.mark.parametrize("name", SAME_IDS)
def test_num_29_cleaning_folds_drops_and_splits(minilm_tokens, name):
    text, same = SAME_IDS[name]
    first, second = minilm_tokens([text, same])
    assert first == second
    assert UNK not in first


def test_num_29_a_word_of_more_than_100_characters_is_one_unknown(minilm_tokens):
    short, long = minilm_tokens(["x" * 100, "x" * 101])
    assert UNK not in short
    assert long == [CLS, UNK, SEP]


def test_num_29_sharp_s_is_kept(minilm_tokens):
    sharp, double = minilm_tokens(["Straße", "Strasse"])
    assert sharp != double


def test_num_29_empty_and_blank_texts_have_the_special_tokens_alone(minilm, open_embedder):
    embedder = open_embedder(minilm)
    done = embedder.embed(["", " \n\t ", "\x00", "\u200b"])
    assert done.tokens.tolist() == [2, 2, 2, 2]
    assert all(ids == [CLS, SEP] for ids in _ids(embedder, ["", " "]).values())
    assert largest(done.vectors, done.vectors[:1].repeat(4, axis=0)) < 1e-6
    assert np.abs(np.linalg.norm(done.vectors, axis=1) - 1).max() < 1e-6


def test_num_29_random_unicode_has_the_librarys_ids(minilm, minilm_tokens, rng):
    texts = random_texts(rng, 10_000)
    want = [one.ids for one in _library(minilm).encode_batch_fast(texts)]
    assert minilm_tokens(texts) == want


def test_num_29_random_unicode_is_cut_as_the_library_cuts(minilm, open_embedder, rng):
    texts = random_texts(rng, 2_000)
    fast = _library(minilm)
    fast.enable_truncation(16)
    got = open_embedder(minilm, max_seq_len=16).tokenize(texts)
    assert [e.input_ids.tolist() for e in got.encodings] == [
        one.ids for one in fast.encode_batch_fast(texts)
    ]
    full = [len(one) for one in _library(minilm).encode_batch_fast(texts)]
    assert got.truncated.tolist() == [n > 16 for n in full]


def random_texts(rng: np.random.Generator, count: int) -> list[str]:
    """Strings over all of Unicode but surrogates, with ASCII and the trickier blocks favoured."""
    blocks = [
        (0x00, 0x80),
        (0x20, 0x7F),
        (0x80, 0x250),
        (0x300, 0x370),
        (0x370, 0x780),
        (0x900, 0x1200),
        (0x2000, 0x2070),
        (0x3000, 0x3400),
        (0x4E00, 0x5000),
        (0xAC00, 0xAE00),
        (0xE000, 0x10000),
        (0x1F300, 0x1FAFF),
        (0x0, 0xD800),
        (0xE000, 0x110000),
    ]
    texts = []
    for length in rng.integers(0, 40, count):
        lows, highs = np.array(blocks)[rng.integers(0, len(blocks), length)].reshape(-1, 2).T
        texts.append("".join(map(chr, rng.integers(lows, highs))))
    return texts


@pytest.fixture
def minilm_tokens(minilm, open_embedder):
    """texts -> token ids by the real model's tokenizer, at 512."""
    embedder = open_embedder(minilm, max_seq_len=512)
    return lambda texts: [e.input_ids.tolist() for e in embedder.tokenize(texts).encodings]


def _library(folder) -> Tokenizer:
    """The tokenizers library on the folder's file, without the baked-in limits."""
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.no_truncation()
    fast.no_padding()
    return fast


def _ids(embedder, texts) -> dict[str, list[int]]:
    found = embedder.tokenize(list(texts)).encodings
    return {text: e.input_ids.tolist() for text, e in zip(texts, found)}
