"""The Embedder with the real all-MiniLM-L6-v2: limits, prompts, order, threads and closing."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from arch import CheckpointError
from drivers import DriverError, ShapeError
from drivers.numpy import NumpyDriver
from drivers.types import Encoding
from pipeline import Embedded, Embedder
from pipeline.errors import TextError, UsageError

TEXTS = ["A man is eating food.", "", "the sea", "\u65e5\u672c\u8a9e", "x " * 40]


@pytest.fixture(scope="module")
def embedder(minilm):
    with Embedder.open(minilm, driver="numpy") as opened:
        yield opened


@pytest.fixture
def prompted(minilm, tmp_path):
    """A folder like MiniLM's with prompts of its own."""
    for file in minilm.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = tmp_path / "config_sentence_transformers.json"
    config.unlink()
    prompts = {"query": "search query: ", "passage": "", "gone": None}
    config.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "query"}))
    return tmp_path


def largest_difference(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def test_limit_is_the_folders_own(embedder):
    assert (embedder.max_seq_len, embedder.dim, embedder.driver_name) == (256, 384, "numpy")


def test_limit_may_go_up_to_the_position_rows(minilm, embedder):
    text = "word " * 600
    with Embedder.open(minilm, driver="numpy", max_seq_len=512) as long:
        done = long.embed([text])
    assert (done.tokens.tolist(), done.truncated.tolist()) == ([512], [True])
    assert np.linalg.norm(done.vectors[0]) == pytest.approx(1, abs=1e-6)
    assert largest_difference(done.vectors, embedder.encode([text])) > 1e-3


@pytest.mark.parametrize("limit", [513, 2**63, 0, -1])
def test_limit_outside_the_position_rows_is_refused(minilm, limit):
    with pytest.raises(UsageError, match=f"max_seq_len is {limit}, wanted 1 to 512, .*position"):
        Embedder.open(minilm, driver="null", max_seq_len=limit)


@pytest.mark.parametrize("limit", [1, 2])
def test_limit_without_room_for_text_is_refused(minilm, limit):
    with pytest.raises(UsageError, match=f"max_seq_len is {limit}, .* special tokens"):
        Embedder.open(minilm, driver="null", max_seq_len=limit)


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_than_one_thread_is_refused(minilm, threads):
    with pytest.raises(UsageError, match=f"threads is {threads}"):
        Embedder.open(minilm, driver="null", threads=threads)


@pytest.mark.parametrize("budget", [0, -5])
def test_batch_budget_below_one_is_refused(minilm, budget):
    with pytest.raises(UsageError, match=f"max_batch_tokens is {budget}"):
        Embedder.open(minilm, driver="null", max_batch_tokens=budget)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", "", "f32"])
def test_dtype_the_driver_lacks_is_refused_with_what_it_has(minilm, dtype):
    with pytest.raises(UsageError, match=f"no dtype '{dtype}', have auto, float32, float16"):
        Embedder.open(minilm, driver="numpy", dtype=dtype)


@pytest.mark.parametrize("driver", ["gpu:0", "cpu2", "nonsense", "", "NumPy"])
def test_driver_that_is_not_there_is_refused_with_what_is(minilm, driver):
    with pytest.raises(
        DriverError, match=f"no driver '{driver}' in this build, have auto, cuda, cpu, numpy"
    ):
        Embedder.open(minilm, driver=driver)


@pytest.mark.parametrize("dim", [0, -1, 385])
def test_dim_outside_the_width_is_refused(minilm, dim):
    with pytest.raises(CheckpointError, match=f"dim is {dim}, wanted 1 to 384"):
        Embedder.open(minilm, driver="null", dim=dim)


@pytest.mark.parametrize("dim", [1, 7, 64, 384])
def test_cut_vectors_are_the_first_values_with_norm_one_again(minilm, embedder, dim):
    whole = embedder.encode(["a sentence"])[0, :dim]
    with Embedder.open(minilm, driver="numpy", dim=dim) as cut:
        vector = cut.encode(["a sentence"])[0]
    assert vector.shape == (dim,)
    assert largest_difference(vector, whole / np.linalg.norm(whole)) < 1e-6


@pytest.mark.parametrize("text", [None, 5, b"bytes", "\ud83d", ["a"], float("nan")])
def test_bad_text_in_the_middle_is_refused_by_row_and_spoils_nothing(embedder, text):
    before = embedder.encode(["fine"])
    with pytest.raises(TextError, match="^row 1: ") as caught:
        embedder.encode(["fine", text, "fine"])
    assert caught.value.row == 1
    np.testing.assert_array_equal(embedder.encode(["fine"]), before)


def test_one_string_instead_of_a_list_is_refused(embedder):
    with pytest.raises(UsageError, match="one string, wanted a list"):
        embedder.encode("a text")


def test_bytes_instead_of_a_list_are_refused(embedder):
    with pytest.raises(TextError, match="row 0: wanted a string, got int"):
        embedder.encode(b"a text")


def test_no_texts_give_an_array_of_no_rows(embedder):
    done = embedder.embed([])
    assert isinstance(done, Embedded)
    assert (done.vectors.shape, done.vectors.dtype) == ((0, 384), np.float32)
    assert done.tokens.shape == done.truncated.shape == (0,)


def test_tuples_arrays_and_generators_are_lists_of_texts(embedder):
    want = embedder.encode(["a", "b"])
    for texts in (("a", "b"), np.array(["a", "b"]), (t for t in "ab"), {"a": 1, "b": 2}):
        np.testing.assert_array_equal(embedder.encode(texts), want)


def test_blank_texts_have_the_vector_of_the_special_tokens_alone(embedder):
    special = Encoding(np.array([101, 102], dtype=np.int32))
    want = embedder.encode_tokens([special])[0]
    assert np.linalg.norm(want) == pytest.approx(1, abs=1e-6)
    for text in ("", " ", "\n\t", "\x00", "\u00a0"):
        assert largest_difference(embedder.encode([text])[0], want) <= 1e-6


def test_vectors_are_float32_of_norm_one(embedder):
    vectors = embedder.encode(TEXTS)
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(TEXTS), 384))
    assert largest_difference(np.linalg.norm(vectors, axis=1), 1) < 1e-6


@pytest.mark.parametrize("budget", [1, 7, 300, 100_000])
def test_rows_keep_their_order_and_vectors_whatever_the_batches(minilm, embedder, budget):
    texts = [f"text {i} " * (i % 5 + 1) for i in range(13)]
    alone = np.concatenate([embedder.encode([text]) for text in texts])
    with Embedder.open(minilm, driver="numpy", threads=2, max_batch_tokens=budget) as batched:
        assert largest_difference(batched.encode(texts), alone) <= 1e-5


def test_prompt_unknown_to_the_folder_is_refused_with_the_known_ones(prompted):
    with Embedder.open(prompted, driver="null") as opened:
        for name in ("nope", "", "gone", "Query"):
            with pytest.raises(UsageError, match=f"no prompt '{name}'; it has 'query', 'passage'$"):
                opened.encode(["a"], prompt=name)


def test_prompt_in_a_folder_without_prompts_is_refused(embedder):
    with pytest.raises(UsageError, match="no prompt 'query'; it has none"):
        embedder.encode([], prompt="query")


def test_named_default_literal_and_empty_prompts(prompted, embedder):
    queried, plain = embedder.encode(["search query: sea"]), embedder.encode(["sea"])
    with Embedder.open(prompted, driver="numpy") as opened:
        for prompt, text, want in [
            ("query", None, queried),
            (None, None, queried),
            (None, "search query: ", queried),
            ("passage", None, plain),
            (None, "", plain),
        ]:
            got = opened.encode(["sea"], prompt=prompt, prompt_text=text)
            np.testing.assert_array_equal(got, want)
    assert largest_difference(queried, plain) > 1e-2


def test_prompt_text_is_literal_even_where_it_is_a_prompts_name(prompted, embedder):
    with Embedder.open(prompted, driver="numpy") as opened:
        got = opened.encode(["sea"], prompt_text="query")
    np.testing.assert_array_equal(got, embedder.encode(["querysea"]))


@pytest.mark.parametrize("text", ["literal", ""])
def test_prompt_and_prompt_text_together_are_refused(prompted, text):
    with (
        Embedder.open(prompted, driver="null") as opened,
        pytest.raises(UsageError, match="prompt and prompt_text are both given"),
    ):
        opened.encode(["a"], prompt="query", prompt_text=text)


@pytest.mark.parametrize("threads", [1, 3])
def test_eight_threads_on_one_embedder_get_the_vectors_of_one(minilm, embedder, threads):
    lists = [[f"{text} {n}" for text in TEXTS] for n in range(8)]
    alone = [embedder.encode(texts) for texts in lists]
    start = threading.Barrier(8)
    with Embedder.open(minilm, driver="numpy", threads=threads) as shared:

        def encode(texts):
            start.wait()
            return shared.encode(texts)

        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(encode, lists))
    for got, want in zip(together, alone):
        assert largest_difference(got, want) <= 1e-6


def test_a_failing_call_does_not_poison_calls_beside_or_after_it(minilm, embedder):
    too_long = Encoding(np.full(513, 1012, dtype=np.int32))
    want = embedder.encode(["fine"])
    good = embedder.tokenize(["fine"]).encodings * 3
    start = threading.Barrier(8)
    with Embedder.open(minilm, driver="numpy", threads=2, max_batch_tokens=4) as shared:

        def call(n):
            start.wait()
            if n % 2:
                with pytest.raises(ShapeError):
                    shared.encode_tokens([*good, too_long, *good])
                return want
            return shared.encode(["fine"])

        with ThreadPoolExecutor(8) as pool:
            results = [*pool.map(call, range(8)), shared.encode(["fine"])]
    for got in results:
        assert largest_difference(got, want) <= 1e-6


def test_text_of_three_mebibytes_is_cut_to_its_first_tokens(embedder):
    words = "hello world "
    done = embedder.embed([words * (3 * 2**20 // len(words) + 1)])
    assert (done.tokens.tolist(), done.truncated.tolist()) == ([256], [True])
    assert largest_difference(done.vectors, embedder.encode([words * 127])) <= 1e-6


def test_word_of_200k_characters_is_one_unknown_word(embedder):
    done = embedder.embed(["a" * 200_000])
    assert (done.tokens.tolist(), done.truncated.tolist()) == ([3], [False])
    assert largest_difference(done.vectors, embedder.encode(["[UNK]"])) <= 1e-6


def test_float16_storage_is_near_float32_but_not_equal(minilm, embedder):
    with Embedder.open(minilm, driver="numpy", dtype="float16") as half:
        got = half.encode(TEXTS)
    assert got.dtype == np.float32
    assert 0 < largest_difference(got, embedder.encode(TEXTS)) < 5e-3


def test_context_manager_ends_the_threads(minilm):
    before = set(threading.enumerate())
    with Embedder.open(minilm, driver="numpy", threads=2) as opened:
        opened.encode(["a", "b " * 200])
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before
    with pytest.raises(RuntimeError, match="shutdown"):
        opened.encode(["a"])
    opened.close()


class RefusingDriver(NumpyDriver):
    """Cannot open a batch."""

    def begin_batch(self):
        raise DriverError("no batch today")


def test_a_driver_that_cannot_open_a_batch_is_not_lost(minilm):
    with Embedder.open(minilm, driver=RefusingDriver()) as embedder:
        for _ in range(2):  # a driver that was lost would leave the second call waiting for ever
            with pytest.raises(DriverError, match="no batch today"):
                embedder.encode(["text"])
