"""The systems that embed.py compares: rayvec, and other ways to get the same vectors.

Each takes strings and gives normalised float32 vectors, by the same folder's tokenizer, weights,
pooling and normalisation. ONNX Runtime and OpenVINO run the whole of what sentence-transformers
computes, as one graph that is exported from it beforehand, in batches of similar lengths that are
padded to their longest.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]


class LeftOut(Exception):
    """A system that cannot do here what it is here for; the message says why."""


class Setup(NamedTuple):
    """What every system is given. graphs: the folder of the exported graphs."""

    folder: Path
    graphs: Path
    max_seq_len: int
    threads: int


class System(NamedTuple):
    """needs: modules without which it cannot take part. imports: those that its process loads.

    open: gives, for a batch size, the function from strings to vectors. batch_sizes: those to
    choose from; none where the system chooses itself.
    """

    needs: tuple[str, ...]
    imports: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    open: Callable[[Setup], Callable[[int | None], Encode]]


# ---- rayvec


def rayvec(driver: str, dtype: str) -> System:
    def open_embedder(setup: Setup) -> Callable[[int | None], Encode]:
        from pipeline import Embedder

        embedder = Embedder.open(
            setup.folder,
            driver=driver,
            dtype=dtype,
            threads=setup.threads,
            max_seq_len=setup.max_seq_len,
        )
        return lambda _: embedder.encode

    return System((), ("pipeline", "drivers.cpu", "tokenizers"), (), open_embedder)


# ---- sentence-transformers


def _sentence_transformers(dtype: str) -> System:
    def open_model(setup: Setup) -> Callable[[int | None], Encode]:
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(setup.threads)
        model = SentenceTransformer(str(setup.folder), device="cpu")
        model.max_seq_length = setup.max_seq_len
        model = model.to(getattr(torch, dtype)).eval()

        def with_batch(size: int | None) -> Encode:
            def encode(texts: list[str]) -> Vectors:
                found: Any = model.encode(
                    texts,
                    batch_size=size or len(texts),
                    convert_to_tensor=True,
                    show_progress_bar=False,
                )
                return np.asarray(found.float())

            return encode

        return with_batch

    needs = ("torch", "sentence_transformers")
    return System(needs, needs, (8, 16, 32), open_model)


def export_graph(setup: Setup) -> None:
    """Write graph.onnx: input_ids, attention_mask (B, S) int64 -> vectors (B, D).

    Attention is written out step by step, which both engines know to put together again.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            written_out = {"attn_implementation": "eager"}
            self.model = SentenceTransformer(
                str(setup.folder), device="cpu", model_kwargs=written_out
            )

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            return self.model(features)["sentence_embedding"]

    ids = torch.ones(2, 16, dtype=torch.int64)  # (B, S)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    sizes = {0: "batch", 1: "tokens"}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Whole().eval(),
            (ids, mask),
            str(setup.graphs / "graph.onnx"),
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_axes={"input_ids": sizes, "attention_mask": sizes, "vectors": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


class PaddedBatches:
    """Texts as batches of similar lengths, each padded to its longest."""

    def __init__(self, setup: Setup) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(setup.folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(setup.max_seq_len)
        self._width = int(read_config(setup.folder)["hidden_size"])

    def new_vectors(self, texts: list[str]) -> Vectors:
        return np.empty((len(texts), self._width), np.float32)

    def batches(
        self, texts: list[str], size: int
    ) -> Iterator[tuple[list[int], dict[str, NDArray[np.int64]]]]:
        """Rows, and their input_ids and attention_mask (B, S), the longest first."""
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            padded = np.zeros((2, len(rows), len(ids[rows[0]])), np.int64)  # (2, B, S)
            for place, row in enumerate(rows):
                padded[0, place, : len(ids[row])] = ids[row]
                padded[1, place, : len(ids[row])] = 1
            yield rows, {"input_ids": padded[0], "attention_mask": padded[1]}


# ---- ONNX Runtime


def fuse_graph(setup: Setup) -> None:
    """Write fused.onnx: graph.onnx after ONNX Runtime's own optimiser for BERT models."""
    from onnxruntime.transformers.optimizer import optimize_model

    config = read_config(setup.folder)
    fused = optimize_model(
        str(setup.graphs / "graph.onnx"),
        model_type="bert",
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
        opt_level=1,
    )
    fused.save_model_to_file(str(setup.graphs / "fused.onnx"))


def _open_onnx_runtime(setup: Setup) -> Callable[[int | None], Encode]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = setup.threads
    session = onnxruntime.InferenceSession(
        str(setup.graphs / "fused.onnx"), options, providers=["CPUExecutionProvider"]
    )
    padded = PaddedBatches(setup)

    def with_batch(size: int | None) -> Encode:
        def encode(texts: list[str]) -> Vectors:
            vectors = padded.new_vectors(texts)
            for rows, inputs in padded.batches(texts, size or len(texts)):
                vectors[rows] = session.run(None, inputs)[0]
            return vectors

        return encode

    return with_batch


# ---- OpenVINO


def _openvino(dtype: str) -> System:
    def open_model(setup: Setup) -> Callable[[int | None], Encode]:
        import openvino

        wanted = {"float32": openvino.Type.f32, "bfloat16": openvino.Type.bf16}[dtype]
        core = openvino.Core()
        settings = {
            "INFERENCE_PRECISION_HINT": wanted,
            "NUM_STREAMS": setup.threads,
            "INFERENCE_NUM_THREADS": setup.threads,
        }
        model = core.compile_model(str(setup.graphs / "graph.onnx"), "CPU", settings)
        got = model.get_property("INFERENCE_PRECISION_HINT")
        if got != wanted:
            raise LeftOut(f"OpenVINO computes in {got.to_string()} here, not in {dtype}")
        queue = openvino.AsyncInferQueue(model, setup.threads)
        padded = PaddedBatches(setup)

        def with_batch(size: int | None) -> Encode:
            def encode(texts: list[str]) -> Vectors:
                vectors = padded.new_vectors(texts)

                def store(request: Any, rows: list[int]) -> None:
                    vectors[rows] = request.get_output_tensor(0).data

                queue.set_callback(store)
                for rows, inputs in padded.batches(texts, size or len(texts)):
                    queue.start_async(inputs, rows)
                queue.wait_all()
                return vectors

            return encode

        return with_batch

    needs = ("openvino", "onnx", "torch", "sentence_transformers")
    return System(needs, ("openvino", "tokenizers"), (4, 8, 16), open_model)


# ---- all of them

REFERENCE = "sentence-transformers float32"
ONNX_RUNTIME = "ONNX Runtime float32"
PEERS: dict[str, System] = {
    REFERENCE: _sentence_transformers("float32"),
    "sentence-transformers bfloat16": _sentence_transformers("bfloat16"),
    ONNX_RUNTIME: System(
        ("onnxruntime", "onnx", "torch", "sentence_transformers"),
        ("onnxruntime", "tokenizers"),
        (4, 8, 16),
        _open_onnx_runtime,
    ),
    "OpenVINO float32": _openvino("float32"),
    "OpenVINO bfloat16": _openvino("bfloat16"),
}


def system_named(name: str) -> System:
    """A peer, or `rayvec DRIVER DTYPE`."""
    if name in PEERS:
        return PEERS[name]
    library, driver, dtype = name.split()
    if library != "rayvec":
        raise SystemExit(f"no system '{name}', have {', '.join(PEERS)} and rayvec DRIVER DTYPE")
    return rayvec(driver, dtype)
