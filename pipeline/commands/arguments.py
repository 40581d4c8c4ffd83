"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object


def add_store(parser: argparse.ArgumentParser) -> None:
    """The index's uri, and the store it is in."""
    parser.add_argument("uri", metavar="URI", help="folder of the index, local or in a store")
    parser.add_argument("--endpoint", help="address of the store, where it is not the provider's")
    parser.add_argument("--region", help="region of the store")


def add_version(parser: argparse.ArgumentParser) -> None:
    """The version of an index to look at."""
    parser.add_argument("--version", type=int, help="a version's number; else the newest")


def add_model(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """The model, its driver and its length limit."""
    parser.add_argument("--model", required=required, help="folder, package:NAME/FOLDER, or hub id")
    parser.add_argument(
        "--driver",
        default="auto",
        help="auto, cuda, cpu, numpy or null; cuda:1 picks a device, cpu:avx2 an instruction set",
    )
    parser.add_argument("--max-seq-len", type=int, help="tokens a text may have")
