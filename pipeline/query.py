"""Queries against an index: the same model and settings that its version was made with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.embedder import Embedder
from pipeline.errors import RayvecError
from pipeline.index import Index
from pipeline.model_identity import identify

NEEDED = (
    "model",
    "model_sha256",
    "tokenizer_sha256",
    "dtype",
    "max_seq_len",
    "pooling",
    "normalize",
    "dim",
    "prompt",
    "prompt_text",
)


class QueryEmbedder:
    """Embeds query texts for one version of an index."""

    def __init__(self, embedder: Embedder, index: Index) -> None:
        self._embedder = embedder
        self._summary = index.version.summary

    @classmethod
    def open(cls, index: Index, *, model: str | None = None) -> QueryEmbedder:
        """Open the model that the version names, or the same one at another place.

        Raises RayvecError where the model there is not the one of the index.
        """
        made_with: dict[str, Any] = dict(index.version.summary)
        for name in NEEDED:
            if name not in made_with:
                raise RayvecError(
                    f"{index.store.uri}: version {index.version.version} does not say its {name}; "
                    "it was not committed by `rayvec run`"
                )
        embedder = Embedder.open(
            model or made_with["model"],
            dtype=made_with["dtype"],
            max_seq_len=made_with["max_seq_len"],
            pooling=made_with["pooling"],
            normalize=made_with["normalize"],
            dim=made_with["dim"],
        )
        found = identify(embedder.model.checkpoint)
        for name in ("model_sha256", "tokenizer_sha256"):
            if getattr(found, name) != made_with[name]:
                embedder.close()
                raise RayvecError(
                    f"{embedder.model.checkpoint.root}: is not the model of the index: its {name} "
                    f"is {getattr(found, name)[:12]}, the index has {made_with[name][:12]}"
                )
        return cls(embedder, index)

    def encode(
        self, text: str, *, prompt: str | None = None, prompt_text: str | None = None
    ) -> NDArray[np.float32]:
        """(D,) float32. prompt: a prompt's name; without one, `query` where the model has it, else
        the prompt of the corpus."""
        if prompt is None and prompt_text is None:
            prompts = self._embedder.model.checkpoint.prompts
            if "query" in prompts:
                prompt = "query"
            else:
                named: Any = self._summary["prompt"]
                literal: Any = self._summary["prompt_text"]
                prompt, prompt_text = named, literal
        (vector,) = self._embedder.encode([text], prompt, prompt_text=prompt_text)
        return np.asarray(vector)

    def __enter__(self) -> QueryEmbedder:
        return self

    def __exit__(self, *_: object) -> None:
        self._embedder.close()
