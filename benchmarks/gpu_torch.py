"""The peer of gpu.py: transformers on the same card, in a process of its own.

float16, PyTorch's scaled dot product attention, texts sorted by length and padded to the longest
of their batch, mean pooling, normalised; the batch size is the fastest of some.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEEDS = ("torch", "transformers")
NAME = "transformers float16"
PART = 4  # every so many rows, a batch size is chosen on

Rows = list[NDArray[np.int32]]
Vectors = NDArray[np.float32]


def missing() -> list[str]:
    """What is not installed."""
    return [module for module in NEEDS if not importlib.util.find_spec(module)]


class TorchPeer:
    """A model in its process; what that raises is raised here."""

    def __init__(self, folder: Path, device: str) -> None:
        self._pool: Executor = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._ask(_load, str(folder), device)

    def choose(self, rows: Rows, sizes: Sequence[int]) -> dict[str, Any]:
        """Take these rows; run from here on in the batch size that is fastest on a part."""
        found: dict[str, Any] = self._ask(_choose, rows, tuple(sizes))
        return found

    def run(self) -> tuple[float, Vectors]:
        """All rows once, from host to host: seconds, and (rows, D)."""
        found: tuple[float, Vectors] = self._ask(_run)
        return found

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()

    def _ask(self, what: Any, *arguments: Any) -> Any:
        return self._pool.submit(what, *arguments).result()


# ---- in the peer's process

MODEL: dict[str, Any] = {}


def _load(folder: str, device: str) -> None:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float16, attn_implementation="sdpa")
    MODEL.update(model=model.to(device).eval(), device=device)


def _choose(rows: Rows, sizes: tuple[int, ...]) -> dict[str, Any]:
    import torch

    MODEL["rows"] = rows[::PART]
    tried: dict[int, float] = {}
    for size in sizes:
        try:
            tried[size] = min(_encode(size)[0] for _ in range(2))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            break
    MODEL["rows"] = rows
    MODEL["size"] = min(tried, key=lambda size: tried[size])
    _encode(MODEL["size"])
    return {"batch_size": MODEL["size"], "seconds_by_batch_size": tried}


def _run() -> tuple[float, Vectors]:
    return _encode(MODEL["size"])


def _sent(array: NDArray[np.int64]) -> Any:
    """The array on the device; nobody waits for it to arrive there."""
    import torch

    tensor, device = torch.from_numpy(array), MODEL["device"]
    if device.startswith("cuda"):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _encode(size: int) -> tuple[float, Vectors]:
    import torch

    rows, model = MODEL["rows"], MODEL["model"]
    started = time.perf_counter()
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    found = []
    with torch.inference_mode():
        for at in range(0, len(order), size):
            picked = [rows[row] for row in order[at : at + size]]
            lengths = np.array([len(row) for row in picked])
            host = np.zeros((len(picked), lengths[0]), np.int64)  # (B, S)
            real = np.arange(lengths[0]) < lengths[:, None]  # (B, S)
            host[real] = np.concatenate(picked)
            ids = _sent(host)
            mask = None if real.all() else _sent(real.astype(np.int64))
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state  # (B, S, E)
            if mask is not None:
                hidden = hidden * mask[..., None].to(hidden.dtype)
            summed = hidden.sum(dim=1, dtype=torch.float32)  # (B, E): of the mean only a length off
            found.append(torch.nn.functional.normalize(summed, dim=1))
        sorted_vectors = torch.cat(found).cpu().numpy()
    vectors = np.empty_like(sorted_vectors)
    vectors[order] = sorted_vectors
    return time.perf_counter() - started, vectors
