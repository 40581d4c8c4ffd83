"""Embedder: tokenizer, model and driver as one object. Texts in, float32 vectors out. No Ray."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

import arch
from arch import ModelArch
from drivers import Driver, DriverPlan, open_driver
from drivers.cache_folder import packed_folder
from drivers.dtypes import BFLOAT16
from drivers.errors import OutOfDeviceMemory
from drivers.types import Encoding
from pipeline.bucketing import plan_batches
from pipeline.chunking import chunk_spans
from pipeline.config import RunConfig
from pipeline.errors import UsageError
from pipeline.model_path import resolve_model
from pipeline.tokenizer import TokenizedTexts, Tokenizer

logger = logging.getLogger(__name__)

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}


@dataclass(frozen=True)
class Embedded:
    """The vectors of some texts, with what a caller may want to record of each.

    vectors: (rows, D) float32. tokens: (rows,) int64, special ones included. truncated: (rows,).
    """

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]


class Embedder:
    """Turns texts into vectors, row i of the output for row i of the input.

    Open one with `Embedder.open`; it may be used from several threads, and as a context manager.
    """

    def __init__(
        self,
        model: ModelArch,
        tokenizer: Tokenizer,
        drivers: Sequence[Driver[Any]],
        max_batch_tokens: int,
    ) -> None:
        """drivers: the one that packed the model's weights, and clones of it, one per thread."""
        self.model = model
        self.tokenizer = tokenizer
        self.max_batch_tokens = max_batch_tokens
        self.driver_name = drivers[0].name
        self.threads = len(drivers)
        self._too_large: int | None = None  # tokens of a batch that the device had no memory for
        self._fitted_tokens = 0  # of the largest batch that it had memory for
        self._free: SimpleQueue[Driver[Any]] = SimpleQueue()
        for driver in drivers:
            self._free.put(driver)
        self._pool = ThreadPoolExecutor(len(drivers), thread_name_prefix="embed")

    @classmethod
    def open(
        cls,
        model: str | Path,
        driver: str | Driver[Any] = "auto",
        dtype: str = "auto",
        threads: int = 1,
        *,
        max_seq_len: int | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        dim: int | None = None,
        max_batch_tokens: int | None = None,
    ) -> Embedder:
        """Load a model for embedding.

        model: a folder, `package:NAME/FOLDER`, or a hub id. driver: `auto`, a driver's name, or a
        driver that nobody else uses.
        dtype: storage of weights and activations, `float32`, `float16` or `bfloat16`; `auto` is the
        first of the driver's that the model's activations fit in. threads: CPU threads, each with a
        clone of the driver over the same weights. max_seq_len: tokens a text may have, special ones
        included, up to the model's position rows; None is what the folder declares. pooling,
        normalize: instead of what the folder says. dim: cut vectors to their first values.
        max_batch_tokens: tokens of a batch, padding counted; None is what the driver prefers.

        Raises UsageError, arch.CheckpointError or drivers.DriverError, all before any text is read.
        """
        if threads < 1:
            raise UsageError(f"threads is {threads}, wanted at least 1")
        if max_batch_tokens is not None and max_batch_tokens < 1:
            raise UsageError(f"max_batch_tokens is {max_batch_tokens}, wanted at least 1")
        first = open_driver(driver) if isinstance(driver, str) else driver
        folder = resolve_model(str(model))
        loaded = arch.load(
            folder,
            first,
            resolve_dtype(dtype, first, folder),
            pooling=pooling,
            normalize=normalize,
            dim=dim,
            packed_folder=packed_folder(),
        )
        settings = loaded.checkpoint.tokenizer
        limit = length_limit(loaded.max_tokens, settings.declared_max_seq_len, max_seq_len)
        tokenizer = Tokenizer(settings, max_seq_len=limit, vocab_size=loaded.vocab_size)
        if "last" in loaded.checkpoint.pool_modes:
            tokenizer.require_end_token()
        for note in loaded.checkpoint.notes:
            logger.info("%s: %s", loaded.checkpoint.root, note)
        clones = [first, *(first.new_for_clone() for _ in range(threads - 1))]
        return cls(loaded, tokenizer, clones, max_batch_tokens or first.preferred_tokens)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.model.dim

    @property
    def max_seq_len(self) -> int:
        """Tokens a text may have before it is truncated, special ones included."""
        return self.tokenizer.max_seq_len

    def encode(
        self, texts: Sequence[str], prompt: str | None = None, *, prompt_text: str | None = None
    ) -> NDArray[np.float32]:
        """The vectors of the texts: (rows, D) float32; row i is text i, whatever else is there.

        prompt: the name of one of the folder's prompts; None is the folder's default prompt, where
        it names one. prompt_text: a literal prompt instead, "" for none. Empty text is embedded as
        the model does. Raises UsageError for an unknown prompt, TextError naming the row of a text
        that cannot be embedded.
        """
        return self.embed(texts, prompt, prompt_text=prompt_text).vectors

    def embed(
        self, texts: Sequence[str], prompt: str | None = None, *, prompt_text: str | None = None
    ) -> Embedded:
        """As `encode`, with each text's token count and whether it was truncated."""
        tokenized = self.tokenize(texts, prompt, prompt_text=prompt_text)
        vectors = self.encode_tokens(tokenized.encodings)
        return Embedded(vectors, tokenized.lengths, tokenized.truncated)

    def tokenize(
        self, texts: Sequence[str], prompt: str | None = None, *, prompt_text: str | None = None
    ) -> TokenizedTexts:
        """The first half of `embed`: texts to encodings."""
        if isinstance(texts, str):
            raise UsageError("texts is one string, wanted a list of strings")
        return self.tokenizer.encode(
            texts,
            prompt=self.prompt_for(prompt, prompt_text),
            pool_prompt=self.model.checkpoint.include_prompt,
        )

    def tokenize_each(self, texts: Sequence[object], prompt: str) -> TokenizedTexts:
        """As `tokenize` with a literal prompt, but a bad text is set aside with its reason."""
        pool_prompt = self.model.checkpoint.include_prompt
        return self.tokenizer.encode_each(texts, prompt=prompt, pool_prompt=pool_prompt)

    def chunk_spans(
        self, texts: Sequence[str], max_tokens: int, overlap_tokens: int
    ) -> list[list[tuple[int, int]]]:
        """Character spans of each text's chunks (`pipeline.chunking`); none for an empty text.

        A chunk is tokenized again by itself, and is cut further where that gives more than
        `max_tokens` (a cut inside a word changes its tokens).
        """
        spans = [
            chunk_spans(offsets, max_tokens, overlap_tokens)
            for offsets in self.tokenizer.offsets(texts)
        ]
        whole = [(row, start, end) for row, found in enumerate(spans) for start, end in found]
        alone = self.tokenizer.offsets([texts[row][start:end] for row, start, end in whole])
        fitting: list[list[tuple[int, int]]] = [[] for _ in texts]
        for (row, start, end), offsets in zip(whole, alone):
            cut = [(0, end - start)]
            if len(offsets) > max_tokens and end - start > 1:
                (cut,) = self.chunk_spans([texts[row][start:end]], max_tokens, overlap_tokens)
            fitting[row] += [(start + a, start + b) for a, b in cut]
        return fitting

    def content_tokens(self, prompt: str) -> int:
        """Tokens of its own that a text may have beside the special ones and a literal prompt."""
        (of_prompt,) = self.tokenizer.offsets([prompt])
        return self.max_seq_len - self.tokenizer.special_tokens - len(of_prompt)

    def encode_tokens(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """The second half of `embed`: (rows, D) float32 for encodings of this model's tokenizer."""
        vectors = np.empty((len(encodings), self.dim), dtype=np.float32)
        batches = plan_batches([len(e) for e in encodings], self.max_batch_tokens)

        def run(rows: NDArray[np.int64]) -> None:
            vectors[rows] = self._forward([encodings[row] for row in rows])

        running = [self._pool.submit(run, rows) for rows in batches]
        try:
            for batch in running:
                batch.result()
        finally:
            for batch in running:
                batch.cancel()
        return vectors

    def prompt_for(self, name: str | None, text: str | None) -> str:
        """The literal prompt that a name or a literal text stands for."""
        checkpoint = self.model.checkpoint
        if text is not None:
            if name is not None:
                raise UsageError("prompt and prompt_text are both given, wanted one of them")
            return text
        if name is None:
            name = checkpoint.default_prompt_name
        if name is None:
            return ""
        if name not in checkpoint.prompts:
            have = ", ".join(f"'{known}'" for known in checkpoint.prompts) or "none"
            raise UsageError(f"{checkpoint.root} has no prompt '{name}'; it has {have}")
        return checkpoint.prompts[name]

    def close(self) -> None:
        """End the threads. The embedder cannot be used afterwards."""
        self._pool.shutdown()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forward(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        driver = self._free.get()
        try:
            return self._fitted(driver, encodings)
        finally:
            self._free.put(driver)

    def _fitted(self, driver: Driver[Any], encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """The vectors of a batch, in halves where the device has no memory for the whole.

        What was too large once is not tried again. Raises OutOfDeviceMemory for a row that does not
        fit alone, saying which length did.
        """
        tokens = sum(len(encoding) for encoding in encodings)
        if len(encodings) == 1 or self._too_large is None or tokens < self._too_large:
            try:
                vectors = self._run(driver, encodings)
            except OutOfDeviceMemory as error:
                if len(encodings) == 1:
                    raise OutOfDeviceMemory(self._too_long(tokens, error)) from error
                smallest = tokens if self._too_large is None else min(tokens, self._too_large)
                # as text: a record that kept the error would keep the batch's tensors with it
                logger.warning(
                    "a batch of %d tokens is halved from here on: %s", tokens, f"{error}"
                )
                self._too_large = smallest
            else:
                self._fitted_tokens = max(self._fitted_tokens, tokens)
                return vectors
        middle = len(encodings) // 2
        halves = (encodings[:middle], encodings[middle:])
        return np.concatenate([self._fitted(driver, half) for half in halves])

    def _too_long(self, tokens: int, error: OutOfDeviceMemory) -> str:
        fitted = (
            f"batches of up to {self._fitted_tokens} tokens did"
            if self._fitted_tokens
            else "nothing did yet"
        )
        return (
            f"a text of {tokens} tokens does not fit into the device's memory by itself, {fitted}: "
            f"set model.max_seq_len below it, or a smaller model.dtype ({error})"
        )

    def _run(self, driver: Driver[Any], encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        driver.begin_batch()
        try:
            return self.model.forward(driver, encodings)
        finally:
            driver.end_batch()


def open_configured(config: RunConfig, *, driver: str | Driver[Any], dtype: str) -> Embedder:
    """The embedder of a run, on one thread: its model and batching, on a given driver and dtype."""
    model, budget = config.model, config.batching.max_batch_tokens
    return Embedder.open(
        model.path,
        driver=driver,
        dtype=dtype,
        max_seq_len=model.max_seq_len,
        pooling=model.pooling,
        normalize=model.normalize,
        dim=model.dim,
        max_batch_tokens=None if budget == "auto" else budget,
    )


def resolve_dtype(dtype: str, driver: DriverPlan, folder: Path) -> np.dtype[Any]:
    """The storage type that a name stands for; `auto` is the driver's first that fits the model.

    folder: the model's. Raises UsageError for a name or a type that the driver does not have, and
    arch.CheckpointError for a folder that is damaged.
    """
    if dtype == "auto":
        fitting = arch.fitting_dtypes(folder)
        for have in driver.dtypes:
            if have in fitting:
                return have
    wanted = DTYPES.get(dtype)
    if wanted is None or wanted not in driver.dtypes:
        have_all = ", ".join(["auto", *(str(d) for d in driver.dtypes)])
        raise UsageError(f"driver '{driver.name}' has no dtype '{dtype}', have {have_all}")
    return wanted


def length_limit(position_rows: int, declared: int | None, asked: int | None) -> int:
    """Tokens a text may have: what was asked for, else the folder's limit, within the rows.

    Raises UsageError where more is asked for than the model has rows.
    """
    if asked is None:
        return position_rows if declared is None else min(declared, position_rows)
    if not 1 <= asked <= position_rows:
        raise UsageError(
            f"max_seq_len is {asked}, wanted 1 to {position_rows}, the model's position rows"
        )
    return asked
