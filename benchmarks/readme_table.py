"""The table of README.md: a few lines of the newest result files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from model_folders import MINILM, model_name

HEADING = "| what | measured | reference |\n"
TABLE = re.compile(re.escape(HEADING) + r"(\|.*\n)*")
OURS = "rayvec "

Record = dict[str, Any]


def with_table(readme: str, records: list[Record]) -> str:
    """The text with its table made anew. Raises SystemExit where it has none."""
    lines = [line for record in records for line in ROWS.get(record["benchmark"], _none)(record)]
    table = HEADING + "|---|---|---|\n" + "".join(f"| {line.rstrip()} |\n" for line in lines)
    if len(TABLE.findall(readme)) != 1:
        raise SystemExit(f"README.md has no line {HEADING!r}, or several")
    return TABLE.sub(lambda _: table, readme)


def _none(record: Record) -> Iterator[str]:
    return iter(())


def _quality(record: Record) -> Iterator[str]:
    scores, published = record["figures"]["scores"], record["figures"]["published"]
    documents, dtype = record["settings"]["documents"], record["settings"]["dtype"]
    documents = documents if documents == "in memory" else f"through `{documents}`"
    for name, what in {
        "STSBenchmark": f"STS benchmark, Spearman, {dtype}",
        "SciFact nDCG@10": f"SciFact, nDCG@10, {dtype}, documents {documents}",
    }.items():
        yield f"{what} | {scores[name]:.5f} | {published[name]:.5f} published"


def _embed(record: Record) -> Iterator[str]:
    settings, figures = record["settings"], record["figures"]
    peers = {name: row for name, row in figures.items() if not name.startswith(OURS)}
    model = "" if settings["model"] == MINILM else f", {model_name(settings['model'])}"
    for name in [name for name in figures if name.startswith(OURS)]:
        row = figures[name]
        named = _worth_naming(peers, name.split()[-1], settings.get("reference"))
        ratios = [
            f"{row['docs_per_second'] / peers[peer]['docs_per_second']:.2f}x {peer}"
            for peer in named
        ]
        what = f"strings to vectors{model}, up to {settings['max_seq_len']} tokens, {name}"
        to_last = [row["largest_difference"], *(peers[n]["largest_difference"] for n in named[-1:])]
        ratios[-1:] = [f"{last} (values within {max(to_last):.1e})" for last in ratios[-1:]]
        yield f"{what} | {row['docs_per_second']:.1f} docs/s | {', '.join(ratios)}"


def _worth_naming(peers: Record, dtype: str, reference: str | None) -> list[str]:
    """The fastest peer, the fastest of the same dtype, and last the reference; each once."""

    def fastest(names: list[str]) -> list[str]:
        return sorted(names, key=lambda name: -peers[name]["docs_per_second"])[:1]

    same = [name for name in peers if dtype in name.replace(",", " ").split()]
    named = dict.fromkeys([*fastest(list(peers)), *fastest(same)])
    return [*(n for n in named if n != reference), *(n for n in peers if n == reference)]


def _job_overhead(record: Record) -> Iterator[str]:
    figures, rows = record["figures"], record["settings"]["rows"]
    what = f"`rayvec run` on {rows:,} rows, start of Ray apart"
    yield f"{what} | {figures['ratio']:.3f}x the time of `Embedder` | "


def _job_memory(record: Record) -> Iterator[str]:
    growth = record["figures"]["driver_growth_bytes"] / 2**20
    yield f"driver process, 500 shards against 10 | {growth:+.0f} MiB | "


ROWS = {
    "quality": _quality,
    "embed": _embed,
    "job-overhead": _job_overhead,
    "job-memory": _job_memory,
}
