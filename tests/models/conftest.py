"""Fixtures for models: tiny folders by spec, and embedders that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families.tiny_model import TinyModel, build_model
from family_goldens import TOGETHER, FamilyGolden, embed_rows, load_family_golden
from folders import TinyBert, build
from goldens import Golden, load_golden

import arch
from drivers import gpus_of
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
    """`Embedder.open` for the driver under test, in float32; all are closed at the end."""
    with ExitStack() as stack:

        def open_one(folder: Path, **options: Any) -> Embedder:
            options = {"dtype": "float32", **options}
            if gpus_of(driver.name):  # a device has one driver, which runs one batch at a time
                options = {**options, "driver": driver, "threads": 1}
            embedder = Embedder.open(folder, **{"driver": driver.name, **options})
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


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory) -> Callable[..., Path]:
    """(spec, layout) -> the folder, built once; tests must not change it."""
    built: dict[str, Path] = {}

    def get(spec: TinyModel, layout: str | None = None) -> Path:
        key = repr((spec, layout or spec.layouts[0]))
        if key not in built:
            built[key] = build_model(tmp_path_factory.mktemp("model"), spec, layout)
        return built[key]

    return get


@pytest.fixture
def load_family(driver, family_folder) -> Callable[..., arch.ModelArch]:
    """(spec, layout, options of `arch.load`) -> the model on the driver under test, in float32."""

    def load(spec: TinyModel, layout: str | None = None, **options: Any) -> arch.ModelArch:
        return arch.load(family_folder(spec, layout), driver, np.float32, **options)

    return load


@pytest.fixture
def check_family(driver, load_family) -> Callable[[str, str], FamilyGolden]:
    """Embeds a case in a layout, judges it against its golden, and returns the golden.

    Long rows go with the first of the case's layouts only: all hold the same numbers.
    """

    def check(name: str, layout: str) -> FamilyGolden:
        golden = load_family_golden(name)
        case, rows = golden.case, golden.case.rows()
        first = layout == case.spellings()[0]
        picked = [i for i, row in enumerate(rows) if first or len(row) <= TOGETHER]
        model = load_family(case.spec, layout)
        golden.check(embed_rows(model, driver, [rows[i] for i in picked]), picked)
        return golden

    return check
