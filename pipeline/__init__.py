"""pipeline: corpora, runs and stores, around one Embedder."""

from pipeline.embedder import Embedded, Embedder

__all__ = ["Embedded", "Embedder"]
