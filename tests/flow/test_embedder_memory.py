"""A device without memory for a batch: it is halved, and a row that does not fit alone is named."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import NumpyDriver
from drivers.errors import OutOfDeviceMemory
from pipeline import Embedder

TEXTS = ["a", "word " * 9, "b c", "d " * 20, "e f g", "h", "i j k l", "word " * 11]


class SmallDriver(NumpyDriver):
    """Has memory for so many tokens. Keeps the tokens of each batch that was tried."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens = tokens
        self.tried = []
        self.open_batches = 0

    def begin_batch(self):
        super().begin_batch()
        self.open_batches += 1

    def end_batch(self):
        super().end_batch()
        self.open_batches -= 1

    def embed(self, batch, tables, norm=None):
        assert self.open_batches == 1
        self.tried.append(batch.total_tokens)
        if batch.total_tokens > self.tokens:
            raise OutOfDeviceMemory("small: no memory for a tensor")
        return super().embed(batch, tables, norm)


@pytest.fixture(scope="module")
def want(minilm):
    with Embedder.open(minilm, driver="numpy") as embedder:
        return embedder.encode(TEXTS)


@pytest.mark.parametrize("tokens", [22, 23, 30, 50, 1000])
def test_a_batch_is_halved_until_it_fits_and_every_row_keeps_its_place(minilm, want, tokens):
    driver = SmallDriver(tokens)
    with Embedder.open(minilm, driver=driver) as embedder:
        got = embedder.embed(TEXTS)
    assert np.abs(got.vectors - want).max() <= 1e-5
    assert driver.open_batches == 0
    assert sum(n for n in driver.tried if n <= tokens) == got.tokens.sum()


def test_what_was_too_large_once_is_not_tried_again(minilm):
    driver = SmallDriver(40)
    with Embedder.open(minilm, driver=driver) as embedder:
        embedder.encode(TEXTS)
        too_large = [n for n in driver.tried if n > 40]
        assert too_large == sorted(set(too_large), reverse=True) != []
        driver.tried.clear()
        embedder.encode(TEXTS)
        assert max(driver.tried) <= 40


def test_a_row_that_does_not_fit_alone_is_refused_with_what_did(minilm):
    driver = SmallDriver(15)
    with Embedder.open(minilm, driver=driver) as embedder:
        embedder.encode(TEXTS[:2])
        with pytest.raises(
            OutOfDeviceMemory,
            match="a text of 22 tokens .* batches of up to 14 tokens did: .*max_seq_len.*no memory",
        ):
            embedder.encode(TEXTS)
        driver.tokens = 100
        assert embedder.encode(TEXTS).shape == (len(TEXTS), 384)


def test_a_device_on_which_nothing_fits_says_so(minilm):
    with (
        Embedder.open(minilm, driver=SmallDriver(0)) as embedder,
        pytest.raises(OutOfDeviceMemory, match="a text of 3 tokens .* nothing did yet"),
    ):
        embedder.encode(["a"])
