"""What the card can do, and what share of it each operation of the driver reaches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from gpu_driver import MeasuredCuda, attended_pairs
from gpu_sizes import Layer, Sizes
from gpu_timing import DeviceClock, Values

from drivers.errors import DeviceLost, DriverError
from drivers.types import EmbeddingTable, Encoding, NormKind, NormWeights

F16_BYTES = 2
UNITS = {"GB/s": 1e9, "TFLOP/s": 1e12}


class Case(NamedTuple):
    """One thing to time. work: floating point operations of a call, or bytes."""

    operation: str
    shape: str
    unit: str
    work: float
    call: Callable[[], object]


class Bench:
    """The operations in float16. `ceilings`: what the card gives at most, by unit."""

    def __init__(self, driver: MeasuredCuda, clock: DeviceClock, sizes: Sizes, rounds: int) -> None:
        self._driver = driver
        self._clock = clock
        self._sizes = sizes
        self._rounds = rounds
        self._values = Values(driver)
        self.ceilings: dict[str, float] = {}

    def measure(self, cases: Iterator[Case]) -> list[dict[str, Any]]:
        """The figures of each case; one that is refused says so, and the next one follows."""
        rows = []
        for case in cases:
            row: dict[str, Any] = {
                "operation": case.operation,
                "shape": case.shape,
                "unit": case.unit,
            }
            rows.append(row)
            try:
                taken = self._clock.milliseconds(case.call, self._rounds)
            except DeviceLost:
                raise
            except DriverError as error:
                row["refused"] = str(error)
                print(f"{case.operation} {case.shape}: {error}", flush=True)
                continue
            rate = case.work / (1e-3 * statistics.median(taken)) / UNITS[case.unit]
            row |= {"rate": rate, "milliseconds": taken}
            if case.unit in self.ceilings:
                row["share"] = rate / self.ceilings[case.unit]
            share = f"{row['share']:7.1%}" if "share" in row else ""
            print(
                f"{case.operation:<12} {case.shape:<52} {rate:9.1f} {case.unit:<7} {share}",
                flush=True,
            )
        return rows

    def measure_ceilings(self) -> dict[str, Any]:
        """Copies and products of all sizes; the best of each unit is its ceiling."""
        rows = self.measure(self._ceiling_cases())
        for unit in UNITS:
            self.ceilings[unit] = max(row.get("rate", 0.0) for row in rows if row["unit"] == unit)
        return {"best": dict(self.ceilings), "tried": rows}

    def _ceiling_cases(self) -> Iterator[Case]:
        for size in self._sizes.copies:
            x = self._driver.alloc_zeros((size // F16_BYTES,), np.float16)
            yield Case("copy", f"{size:,} bytes", "GB/s", 2.0 * size, self._copy(x))
        for rows, depth, cols in self._sizes.products:
            x, weight = self._values.tokens(rows, depth), self._values.weight(cols, depth)
            shape, flops = f"{rows} x {depth} x {cols}", 2.0 * rows * depth * cols
            yield Case("product", shape, "TFLOP/s", flops, self._linear(x, weight))

    def layers(self) -> Iterator[Case]:
        """The linear layers of known models, product and all that is done with it."""
        for layer in self._sizes.layers:
            yield self._layer(layer)

    def _layer(self, layer: Layer) -> Case:
        tokens, cols = self._sizes.tokens, layer.cols * (2 if layer.gated else 1)
        x, weight = self._values.tokens(tokens, layer.depth), self._weight(layer)
        bias = self._values.vector(cols) if layer.bias else None
        options: dict[str, Any] = {"act": layer.act}
        if layer.residual:
            options["residual"] = self._values.tokens(tokens, layer.cols)
        run = self._driver.gated_linear if layer.gated else self._driver.linear
        how = [f"{tokens} x {layer.depth} x {cols}"]
        how += [name for name in ("gated", "bias", "residual") if getattr(layer, name)]
        how += [layer.act] if layer.act else []
        return Case(
            "layer",
            f"{layer.model}, {layer.part}, {', '.join(how)}",
            "TFLOP/s",
            2.0 * tokens * layer.depth * cols,
            lambda: run(x, weight, bias, **options),
        )

    def attention(self) -> Iterator[Case]:
        """Sequences of one length, as many as there are tokens for, in heads of every width."""
        for head_dim in self._sizes.head_dims:
            for length in self._sizes.lengths:
                yield self._attention(length, head_dim, None)
        yield self._attention(self._sizes.lengths[1], self._sizes.head_dims[1], self._sizes.window)

    def _attention(self, length: int, head_dim: int, window: int | None) -> Case:
        rows, heads = max(1, self._sizes.tokens // length), self._sizes.heads // head_dim
        batch = self._driver.prepare_batch_unpadded(self._encodings(rows, length))
        qkv = self._values.tokens(rows * length, 3 * heads * head_dim)
        pairs = attended_pairs([length] * rows, window, window)
        return Case(
            "attention",
            f"{rows} x {length} tokens, {heads} heads of {head_dim}"
            + (f", {window} each way" if window else ""),
            "TFLOP/s",
            4.0 * pairs * heads * head_dim,
            lambda: self._driver.attention(
                qkv, batch, num_heads=heads, window_left=window, window_right=window
            ),
        )

    def rows(self) -> Iterator[Case]:
        """Norms and look-ups: bytes that are read and written once, of tokens and of table rows."""
        tokens = self._sizes.row_tokens
        for width in self._sizes.widths:
            x, residual = (self._values.tokens(tokens, width) for _ in range(2))
            yield self._norm(x, None, "layer")
            yield self._norm(x, residual, "layer")
            yield self._norm(x, residual, "rms")
            yield self._embed(tokens, width)

    def _norm(self, x: Any, residual: Any, kind: NormKind) -> Case:
        tokens, width = x.shape
        weight = self._values.vector(width)
        norm = NormWeights(weight, weight if kind == "layer" else None, 1e-12, kind)
        moved = (2 if residual is None else 3) * tokens * width * F16_BYTES
        what = f"{kind} norm" + ("" if residual is None else " of a sum")
        return Case(
            "add_norm",
            f"{tokens:,} x {width}, {what}",
            "GB/s",
            float(moved),
            lambda: self._driver.add_norm(x, residual, norm),
        )

    def _embed(self, tokens: int, width: int) -> Case:
        """BERT's three tables; the small ones stay in the caches and are not counted."""
        length = min(tokens, self._sizes.length)
        batch = self._driver.prepare_batch_unpadded(self._encodings(tokens // length, length))
        vocab, weight = self._sizes.vocab, self._values.weight
        tables = [
            EmbeddingTable(weight(vocab, width, "table"), "input_ids"),
            EmbeddingTable(weight(length, width, "table"), "position_ids"),
            EmbeddingTable(weight(2, width, "table"), "token_type_ids"),
        ]
        norm = NormWeights(self._values.vector(width), self._values.vector(width), 1e-12)
        return Case(
            "embed",
            f"{batch.total_tokens:,} x {width}, 3 tables and a layer norm",
            "GB/s",
            2.0 * batch.total_tokens * width * F16_BYTES,
            lambda: self._driver.embed(batch, tables, norm),
        )

    def _encodings(self, rows: int, length: int) -> list[Encoding]:
        ids = np.random.default_rng(0).integers(0, self._sizes.vocab, (rows, length), np.int32)
        return [Encoding(row) for row in ids]

    def _weight(self, layer: Layer) -> Any:
        rows = layer.cols * (2 if layer.gated else 1)
        return self._values.weight(rows, layer.depth, "gated" if layer.gated else "linear")

    def _copy(self, x: Any) -> Callable[[], object]:
        return lambda: self._driver.clone_tensor(x)

    def _linear(self, x: Any, weight: Any) -> Callable[[], object]:
        return lambda: self._driver.linear(x, weight)
