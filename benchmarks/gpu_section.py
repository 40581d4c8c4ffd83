"""What docs/BENCHMARKS.md says of a run of gpu.py, or that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_folders import model_name

HEADING = "## The CUDA driver on a card"
NONE_MEASURED = f"""{HEADING}

No figure of a GPU has been measured: `benchmarks/gpu.py` has not run on a card yet, or its result
file is not kept here.
"""
KINDS = {"uniform": "texts of {length} tokens", "natural": "texts of their own lengths"}
TESTS = {"goldens": "of the models' goldens", "contract": "of the contract's tests"}
KERNELS_SHOWN = 8

Record = dict[str, Any]


def gpu(record: Record) -> Iterator[str]:
    settings, figures = record["settings"], record["figures"]
    card = settings["card"]
    yield f"{HEADING}: {card['name']}\n"
    yield (
        f"CuPy {card['cupy']}, CUDA {card['cuda_runtime']} (driver {card['cuda_of_driver']}), "
        f"float16, medians of {settings['rounds']} rounds."
    )
    if "ceilings" in figures:
        best = figures["ceilings"]["best"]
        yield (
            f"In this run the card copied {best['GB/s']:,.0f} GB/s and multiplied matrices at "
            f"{best['TFLOP/s']:,.0f} TFLOP/s; shares are of these.\n"
        )
    for name, what in TESTS.items():
        if "passed" in figures.get(name, {}):
            yield _tests(figures[name], what)
    for name in figures["skipped"]:
        yield f"- Skipped, for want of time: {name}."
    for name, why in figures["failed"].items():
        yield f"- Failed: {name} ({why.splitlines()[0]})."
    models = [found for found in figures.values() if isinstance(found, dict) and "model" in found]
    if models:
        yield from _models(models, settings)
        for found in models:
            yield from _kernels(found, settings)
    for name in ("layers", "attention", "rows"):
        if name in figures:
            yield from _operations(name, figures[name])


def _tests(found: Record, what: str) -> str:
    end = ", stopped before the end" if found["stopped"] else ""
    names = "".join(f" `{failure['test']}`" for failure in found["failed"])
    failed = f", {len(found['failed'])} failed:{names}" if found["failed"] else ", none failed"
    return f"- {found['passed']:,} {what} passed{failed}{end}."


def _models(models: list[Record], settings: Record) -> Iterator[str]:
    yield ""
    yield "| model | texts | system | tokens/s | of the ceiling | rayvec is | cosine, least |"
    yield "|" + "---|" * 7
    for found in models:
        for kind, raced in found["systems"].items():
            rows = raced["by_system"]
            ours = next(iter(rows.values()))["tokens_per_second"]
            for name, row in rows.items():
                exact = found["exactness"].get(name) if kind == "natural" else None
                cells = (
                    model_name(found["model"]),
                    KINDS[kind].format(length=settings["max_seq_len"]),
                    name + (f", batch {row['batch_size']}" if "batch_size" in row else ""),
                    f"{row['tokens_per_second']:,.0f}",
                    f"{row['share']:.1%}" if "share" in row else "",
                    f"{ours / row['tokens_per_second']:.2f}x",
                    f"{exact['cosine_min']:.6f}" if exact else "",
                )
                yield "| " + " | ".join(cells) + " |"
    yield ""
    yield (
        "From ids on the host to vectors on the host. Cosines are to float32 on the same card, "
        "which NumPy checks on some of the texts: "
        + ", ".join(
            f"{model_name(found['model'])} within "
            f"{found['exactness']['rayvec float32']['largest_difference']:.1e}"
            for found in models
        )
        + "."
    )
    for found in models:
        for name, why in found["left_out"].items():
            yield f"{model_name(found['model'])}: {name} was left out ({why.splitlines()[0]})."


def _kernels(found: Record, settings: Record) -> Iterator[str]:
    batch, table = found["kernels"], found["kernels"]["by_kernel"]
    yield (
        f"\nA batch of {model_name(found['model'])}, {batch['tokens']:,} tokens in texts of "
        f"{settings['max_seq_len']}: {batch['batch_milliseconds']:.2f} ms, of which its kernels "
        f"take {batch['kernels_milliseconds']:.2f} ms.\n"
    )
    yield "| kernel | launches | milliseconds | share |"
    yield "|" + "---|" * 4
    for row in table[:KERNELS_SHOWN]:
        yield (
            f"| {row['kernel']} | {row['launches']} | {row['milliseconds']:.3f} | "
            f"{row['share']:.1%} |"
        )
    rest = table[KERNELS_SHOWN:]
    if rest:
        launches, spent, share = (
            sum(row[key] for row in rest) for key in ("launches", "milliseconds", "share")
        )
        yield f"| {len(rest)} more | {launches} | {spent:.3f} | {share:.1%} |"


def _operations(name: str, rows: list[Record]) -> Iterator[str]:
    yield f"\n| {name} | rate | of the ceiling |"
    yield "|---|---|---|"
    for row in rows:
        said = row.get("refused") or f"{row['rate']:,.1f} {row['unit']}"
        share = f"{row['share']:.1%}" if "share" in row else ""
        yield f"| {row['shape']} | {said} | {share} |"
