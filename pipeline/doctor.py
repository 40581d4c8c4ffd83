"""`rayvec doctor`: what is installed, which driver is used and why, what a model folder says."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from threadpoolctl import threadpool_info

from drivers import DriverError, choose_driver
from drivers.cuda import describe_cuda
from pipeline.embedder import Embedder

PACKAGES = (
    "rayvec",
    "numpy",
    "tokenizers",
    "safetensors",
    "pyarrow",
    "ray",
    "obstore",
    "huggingface_hub",
)

Line = tuple[str, str]


def report_machine(driver: str) -> Iterator[Line]:
    """(name, value) lines on versions, processor, BLAS and driver.

    Raises DriverError for a driver that this build does not have.
    """
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in PACKAGES:
        yield package, _version(package)
    yield "processor", f"{_processor()}, {os.cpu_count()} logical cores"
    for library in threadpool_info():
        if library.get("user_api") == "blas":
            kernel = library.get("architecture", "unknown kernel")
            yield "blas", f"{library['internal_api']} {library['version']} ({kernel})"
    yield "cuda", _cuda()
    chosen, reason = choose_driver(driver)
    yield "driver", f"{chosen}: {reason}"


def report_model(model: str, *, max_seq_len: int | None) -> Iterator[Line]:
    """(name, value) lines on a model folder, loaded for shapes alone.

    Raises UsageError or arch.CheckpointError where it cannot be loaded.
    """
    with Embedder.open(model, driver="null", max_seq_len=max_seq_len) as embedder:
        loaded, checkpoint = embedder.model, embedder.model.checkpoint
        settings = checkpoint.tokenizer
        yield "folder", str(checkpoint.root)
        yield "family", f"{checkpoint.model_type} ({type(loaded).__name__})"
        yield "vector", f"{loaded.dim} values, {_norm(checkpoint.normalized)}"
        skipped = "" if checkpoint.include_prompt else ", prompt left out"
        yield "pooling", " + ".join(checkpoint.pool_modes) + skipped
        modules = [type(m).__name__.removesuffix("Module") for m in checkpoint.head]
        yield "modules after", ", ".join(modules) or "none"
        yield "prompts", ", ".join(f"{k}={v!r}" for k, v in checkpoint.prompts.items()) or "none"
        yield "default prompt", checkpoint.default_prompt_name or "none"
        declared = settings.declared_max_seq_len or "nothing"
        yield (
            "length limit",
            f"{embedder.max_seq_len} tokens (folder declares {declared}, "
            f"{loaded.max_tokens} position rows)",
        )
        yield "tokenizer", _tokenizer_text(embedder)
        for note in checkpoint.notes:
            yield "by default", note


def _cuda() -> str:
    """The first CUDA device, or why there is none."""
    try:
        return f"cuda:0 is {describe_cuda('cuda:0')}"
    except DriverError as error:
        return str(error)


def _tokenizer_text(embedder: Embedder) -> str:
    settings = embedder.model.checkpoint.tokenizer
    lowered = ", text lowered first" if settings.lower_text else ""
    undone = ", ".join(embedder.tokenizer.undone) or "none"
    rows = embedder.model.vocab_size
    return f"{settings.file.name} for {rows} token rows{lowered}; baked-in limits undone: {undone}"


def _norm(normalized: bool) -> str:
    return "norm 1" if normalized else "not normalised"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"
