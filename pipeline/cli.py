"""The `rayvec` command.

Exit codes: 0 done, 1 failed, 2 wrong usage, config or model, 3 a guard stopped it, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from arch import CheckpointError
from drivers import DriverError
from pipeline.commands import doctor, embed, index, run
from pipeline.errors import RayvecError, UsageError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors go to standard error, one line each."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    try:
        args.command(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except RayvecError as error:
        return _fail(error, error.exit_code)
    except (CheckpointError, DriverError) as error:
        return _fail(error, UsageError.exit_code)
    except BrokenPipeError:  # the reader of our output left; keep the interpreter from saying so
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RayvecError.exit_code
    except KeyboardInterrupt:
        return _fail(RayvecError("interrupted; what is done is kept"), INTERRUPTED)
    return 0


def entry() -> None:
    """The console script: run the command and exit with its code."""
    sys.exit(main())


def _fail(error: Exception, code: int) -> int:
    print(f"rayvec: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rayvec", description="A corpus in, an index out.")
    parser.add_argument("--verbose", action="store_true", help="log what is decided on the way")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (run, index, embed, doctor):
        module.add_parsers(commands)
    return parser
