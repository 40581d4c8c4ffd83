"""Fixtures for models: tiny folders by spec, and embedders that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import TinyBert, build
from goldens import Golden, load_golden

from pipeline import Embedder


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory) -> Callable[[TinyBert], Path]:
    """The folder of a spec, built once; tests must not change it."""
    built: dict[str, Path] = {}

    def get(spec: TinyBert) -> Path:
        key = repr(spec)
        if key not in built:
            built[key] = build(tmp_path_factory.mktemp("model"), spec)
        return built[key]

    return get


@pytest.fixture
def open_embedder(driver) -> Iterator[Callable[..., Embedder]]:
    """`Embedder.open` for the driver under test; all are closed at the end."""
    with ExitStack() as stack:

        def open_one(folder: Path, **options: Any) -> Embedder:
            embedder = Embedder.open(folder, driver=driver.name, **options)
            return stack.enter_context(embedder)

        yield open_one


@pytest.fixture
def embed_spec(folder_of, open_embedder) -> Callable[..., np.ndarray]:
    """(spec, texts, options) -> vectors."""

    def embed(spec: TinyBert, texts, prompt: str | None = None, **options: Any) -> np.ndarray:
        return open_embedder(folder_of(spec), **options).encode(list(texts), prompt)

    return embed


@pytest.fixture
def check_case(embed_spec) -> Callable[[str], Golden]:
    """Embeds a case of the catalogue, judges it against its golden, and returns the golden."""

    def check(name: str) -> Golden:
        golden = load_golden(name)
        case = golden.case
        golden.check(embed_spec(case.spec, case.texts, case.prompt))
        return golden

    return check
