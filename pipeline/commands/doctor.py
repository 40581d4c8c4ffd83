"""`rayvec doctor`: what is installed, which driver is used and why, what a model folder says."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from pipeline.commands.arguments import Subparsers, add_model
from pipeline.doctor import report_machine, report_model


def add_parsers(commands: Subparsers) -> None:
    """Add `doctor`."""
    parser = commands.add_parser("doctor", help="show versions, driver and a model's settings")
    parser.set_defaults(command=doctor)
    add_model(parser, required=False)


def doctor(args: argparse.Namespace) -> None:
    """Print what the machine has and, where one is named, what a model folder says."""
    _print_lines(report_machine(args.driver))
    if args.model is not None:
        print()
        _print_lines(report_model(args.model, max_seq_len=args.max_seq_len))


def _print_lines(lines: Iterable[tuple[str, str]]) -> None:
    for name, value in lines:
        print(f"{name:<16} {value}")
