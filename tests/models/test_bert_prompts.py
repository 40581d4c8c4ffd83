"""Prompts of config_sentence_transformers.json: NUM-07."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue import PROMPT, PROMPTED, PROMPTS, TEN
from goldens import largest, load_golden

from pipeline.errors import UsageError


@pytest.mark.parametrize("name", PROMPT)
def test_num_07_prompts_give_the_references_vectors(check_case, name):
    check_case(name)


@pytest.mark.parametrize("name", PROMPT)
def test_num_07_token_ids_are_those_of_prompt_and_text_with_nothing_between(
    folder_of, open_embedder, name
):
    case = PROMPT[name]
    embedder = open_embedder(folder_of(case.spec))
    got = embedder.tokenize(list(case.texts), case.prompt).encodings
    assert [e.input_ids.tolist() for e in got] == load_golden(name).input_ids
    literal = case.spec.prompts[case.prompt or case.spec.default_prompt_name or "document"]
    joined = embedder.tokenize([literal + text for text in case.texts], prompt_text="").encodings
    assert [e.input_ids.tolist() for e in got] == [e.input_ids.tolist() for e in joined]


def test_num_07_a_prompt_is_not_applied_by_default(embed_spec):
    plain = embed_spec(PROMPTED, TEN)
    np.testing.assert_array_equal(plain, embed_spec(PROMPTED, TEN, "document"))
    assert largest(plain, embed_spec(PROMPTED, TEN, "query")) > 0.1


@pytest.mark.parametrize("name", [n for n in PROMPT if "left_out" in n])
def test_num_07_a_prompt_left_out_of_pooling_is_still_attended_to(folder_of, open_embedder, name):
    case = PROMPT[name]
    embedder = open_embedder(folder_of(case.spec))
    encodings = embedder.tokenize(list(case.texts), case.prompt).encodings
    assert [e.pool_skip for e in encodings] == [3] * len(encodings)  # [CLS] find :


def test_num_07_a_literal_prompt_equals_the_named_one(folder_of, open_embedder):
    embedder = open_embedder(folder_of(PROMPTED))
    texts = list(TEN)
    named = embedder.encode(texts, "glue")
    np.testing.assert_array_equal(named, embedder.encode(texts, prompt_text=PROMPTS["glue"]))


def test_num_07_an_empty_literal_prompt_switches_the_default_off(folder_of, open_embedder):
    embedder = open_embedder(folder_of(PROMPT["prompt_default"].spec))
    load_golden("prompt_none").check(embedder.encode(list(TEN), prompt_text=""))


def test_num_07_an_unknown_prompt_name_is_refused(folder_of, open_embedder):
    folder = folder_of(PROMPTED)
    with pytest.raises(UsageError, match="no prompt 'passage'") as caught:
        open_embedder(folder).encode(["river"], "passage")
    assert str(folder) in str(caught.value)
    assert all(f"'{name}'" in str(caught.value) for name in PROMPTS)


def test_num_07_a_name_and_a_literal_prompt_together_are_refused(folder_of, open_embedder):
    with pytest.raises(UsageError, match="prompt and prompt_text"):
        open_embedder(folder_of(PROMPTED)).encode(["river"], "query", prompt_text="Find:")
