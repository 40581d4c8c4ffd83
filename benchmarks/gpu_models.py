"""Tokens a second of whole models on the card, against transformers in the same run."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gpu_driver import MeasuredCuda
from gpu_sizes import Sizes
from gpu_timing import AHEAD, WARM_UPS, DeviceClock
from gpu_torch import NAME, PART, TorchPeer, missing
from likeness import Vectors, likeness

from drivers import Encoding
from pipeline import Embedder

OURS = "rayvec float16"
EXACT = "rayvec float32"
CHECK = "NumPy float32"
AT_LEAST_AHEAD = 0.005  # seconds

Run = Callable[[], tuple[float, Vectors]]
"""All texts once: the seconds from ids on the host to vectors on the host, and the vectors."""


class Setting(NamedTuple):
    """What all models are measured with. peak: operations a second that the card gives at most."""

    driver: MeasuredCuda
    clock: DeviceClock
    sizes: Sizes
    device: str
    rounds: int
    peak: float | None


def measure_model(setting: Setting, folder: Path, texts: list[str]) -> dict[str, Any]:
    """Texts of one length and of their own lengths by system, kernels, and how exact it is."""
    sizes = setting.sizes
    with ExitStack() as stack:
        embedder = stack.enter_context(_opened(setting, folder, "float16"))
        corpora = {
            "uniform": random_rows(sizes),
            "natural": embedder.tokenize(texts).encodings,
        }
        peer, why = _peer(setting, folder)
        figures: dict[str, Any] = {"systems": {}, "left_out": {NAME: why} if why else {}}
        vectors: dict[str, dict[str, Vectors]] = {}
        if peer is not None:
            stack.callback(peer.close)
        for kind, rows in corpora.items():
            raced, vectors[kind] = _race(setting, embedder, peer, rows, figures["left_out"])
            figures["systems"][kind] = raced
        figures["batch_tokens"] = sweep(embedder, corpora["natural"])
        batch = corpora["uniform"][: max(1, embedder.max_batch_tokens // sizes.length)]
        figures["kernels"] = kernel_table(setting, embedder, batch)
        figures["exactness"] = _exactness(setting, folder, corpora["natural"], vectors["natural"])
    return figures


def random_rows(sizes: Sizes) -> list[Encoding]:
    """Texts of one length."""
    rng = np.random.default_rng(0)
    shape = (sizes.sequences, sizes.length)
    return [Encoding(row) for row in rng.integers(*sizes.ids, shape, np.int32)]


def _opened(setting: Setting, folder: Path, dtype: str) -> Embedder:
    length = setting.sizes.length
    return Embedder.open(folder, driver=setting.driver, dtype=dtype, max_seq_len=length)


def _peer(setting: Setting, folder: Path) -> tuple[TorchPeer | None, str]:
    """The peer, or why it is not there."""
    lacking = missing()
    if lacking:
        return None, _left_out(f"not installed: {', '.join(lacking)}")
    try:
        return TorchPeer(folder, setting.device), ""
    except Exception as error:
        return None, _left_out(f"{type(error).__name__}: {error}")


def _left_out(why: str) -> str:
    print(f"{NAME} is left out: {why}", flush=True)
    return why


# ---- the race


def _race(
    setting: Setting,
    embedder: Embedder,
    peer: TorchPeer | None,
    rows: Sequence[Encoding],
    left_out: dict[str, str],
) -> tuple[dict[str, Any], dict[str, Vectors]]:
    """Figures and vectors by system, which take turns; a peer that fails is left out."""
    tokens = sum(map(len, rows))

    def ours() -> tuple[float, Vectors]:
        started = time.perf_counter()
        vectors = embedder.encode_tokens(rows)
        return time.perf_counter() - started, vectors

    ours()  # the arena and the plans of products are made
    before = setting.driver.flops_total
    ours()
    flops = setting.driver.flops_total - before
    runs: dict[str, Run] = {OURS: ours}
    found: dict[str, dict[str, Any]] = {OURS: {"batch_tokens": embedder.max_batch_tokens}}
    if peer is not None:
        try:
            found[NAME] = peer.choose([row.input_ids for row in rows], setting.sizes.batch_sizes)
            runs[NAME] = peer.run
        except Exception as error:
            left_out[NAME] = _left_out(f"{type(error).__name__}: {error}")
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    vectors: dict[str, Vectors] = {}
    for _ in range(setting.rounds):
        for name, run in runs.items():
            taken, vectors[name] = run()
            seconds[name].append(taken)
    for name in runs:
        rate = tokens / statistics.median(seconds[name])
        found[name] |= {"tokens_per_second": rate, "seconds": seconds[name]}
        if setting.peak:
            found[name]["share"] = rate * flops / tokens / setting.peak
        print(f"{len(rows):,} texts, {tokens:,} tokens  {name:<22} {rate:14,.0f} tokens/s")
    counted = {"texts": len(rows), "tokens": tokens, "flops_per_token": flops / tokens}
    return {**counted, "by_system": found}, vectors


def sweep(embedder: Embedder, rows: Sequence[Encoding]) -> dict[int, float]:
    """Tokens a second of ours by the batch's token budget, on a part of the texts."""
    part, budget = rows[::PART], embedder.max_batch_tokens
    found = {}
    for tokens in (budget // 2, budget, 2 * budget, 4 * budget):
        embedder.max_batch_tokens = tokens
        for _ in range(WARM_UPS):
            embedder.encode_tokens(part)
        started = time.perf_counter()
        embedder.encode_tokens(part)
        found[tokens] = sum(map(len, part)) / (time.perf_counter() - started)
    embedder.max_batch_tokens = budget
    said = ", ".join(f"{tokens:,}: {rate:,.0f}" for tokens, rate in found.items())
    print(f"{OURS}, tokens/s by tokens of a batch: {said}", flush=True)
    return found


# ---- kernels


def kernel_table(setting: Setting, embedder: Embedder, batch: Sequence[Encoding]) -> dict[str, Any]:
    """What a batch's time goes into: by kernel its launches, milliseconds and share.

    Where the batch takes longer than its kernels together, the device waits for the host.
    """
    driver = setting.driver
    taken = []
    for _ in range(setting.rounds):
        started = time.perf_counter()
        embedder.encode_tokens(batch)
        taken.append(time.perf_counter() - started)
    ahead = max(AT_LEAST_AHEAD, 2 * AHEAD * max(taken))  # with marks the host takes longer
    with driver.timing(lambda: setting.clock.keep_busy(ahead)) as launches:
        embedder.encode_tokens(batch)
    spent: dict[str, float] = defaultdict(float)
    for launch in launches:
        spent[launch.kernel] += launch.milliseconds
    counts = Counter(launch.kernel for launch in launches)
    whole = sum(spent.values())
    table = [
        {"kernel": name, "launches": counts[name], "milliseconds": ms, "share": ms / whole}
        for name, ms in sorted(spent.items(), key=lambda item: -item[1])
    ]
    found = {
        "tokens": sum(map(len, batch)),
        "batch_milliseconds": 1e3 * statistics.median(taken),
        "kernels_milliseconds": whole,
        "by_kernel": table,
    }
    print(
        f"a batch of {found['tokens']:,} tokens: {found['batch_milliseconds']:.3f} ms, of them "
        f"{whole:.3f} ms in {len(launches)} launches"
    )
    for row in table:
        cells = f"{row['milliseconds']:10.3f} ms {row['share']:6.1%} {row['launches']:4}"
        print(f"{cells}  {row['kernel']}", flush=True)
    return found


# ---- exactness


def _exactness(
    setting: Setting, folder: Path, rows: Sequence[Encoding], vectors: dict[str, Vectors]
) -> dict[str, Any]:
    """Each system to float32 on the card, which NumPy checks on a few texts of all lengths."""
    with _opened(setting, folder, "float32") as exact:
        reference = exact.encode_tokens(rows)
    figures: dict[str, dict[str, Any]] = {}
    for name, found in vectors.items():
        figures[name] = {**likeness(found, reference)}
    by_length = np.argsort([len(row) for row in rows], kind="stable")
    count = min(len(rows), setting.sizes.checked_texts)
    some = by_length[np.linspace(0, len(rows) - 1, count).astype(int)]
    with Embedder.open(folder, "numpy", "float32", max_seq_len=setting.sizes.length) as check:
        wanted = check.encode_tokens([rows[row] for row in some])
    figures[EXACT] = likeness(reference[some], wanted) | {"reference": CHECK, "texts": count}
    for name, row in figures.items():
        print(
            f"{name:<22} cosine to {row.get('reference', EXACT)}: least {row['cosine_min']:.7f}, "
            f"largest difference {row['largest_difference']:.1e}",
            flush=True,
        )
    return figures
