"""Compiles kernels to cubins, once a machine, and tells what they take.

python -m drivers.cuda.build [--arch sm_80 ...] [--folder DIR] compiles every theme for every
storage type ahead of time and prints a table. What it wrote is what the device loads: a cubin's
name is the hash of all that went into it, so it is never stale; files of old sources stay until
somebody deletes them.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drivers.cache_folder import cubin_folder
from drivers.cuda.launch import KERNELS, Build, build_of, storage_types
from drivers.cuda.nvrtc import Compiled, nvrtc
from drivers.errors import KernelCompileError

logger = logging.getLogger(__name__)

ARCHS = ("sm_80", "sm_89", "sm_90")
OPTIONS = ("--std=c++17", "--ptxas-options=-v")

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers(?:.*?(\d+)(?:\+0)? bytes smem)?")


@dataclass(frozen=True)
class KernelReport:
    """What a thread of a kernel takes, and what a block of it takes before a launch adds to it."""

    kernel: str
    registers: int
    spill_bytes: int  # stored and loaded
    shared_bytes: int


def themes() -> tuple[str, ...]:
    """The files of kernels, by name."""
    return tuple(sorted(path.stem for path in KERNELS.glob("*.cu") if path.stem != "prelude"))


def cubin_of(build: Build, arch: str, folder: Path | None = None) -> Path:
    """The build for an architecture such as sm_90, compiled where no file is there yet.

    folder: the cache's (`drivers.cache_folder`) if None. Processes that want the same file at once
    compile it once; a file appears whole or not at all. Where the folder cannot be written, this
    process compiles for itself. Raises KernelCompileError.
    """
    folder = cubin_folder() if folder is None else folder
    everything = (build.source, build.defines, arch, OPTIONS, nvrtc().version)
    path = folder / f"{hashlib.sha256(repr(everything).encode()).hexdigest()}.cubin"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                _write(path, _compile(build, arch))
    except OSError as error:
        if folder == _own_folder():
            raise
        logger.warning(
            "%s: cubins are not kept, each process compiles its own: %s",
            folder,
            error.strerror or error,
        )
        return cubin_of(build, arch, _own_folder())
    return path


def report_of(cubin: Path) -> tuple[KernelReport, ...]:
    """What the compiler said of the kernels of a file that `cubin_of` gave, by name."""
    log = cubin.with_suffix(".log").read_text(encoding="utf-8")
    reports = []
    entries = ENTRY.split(log)[1:]  # a name, then what is said of it, and so on
    for kernel, said in zip(entries[::2], entries[1::2]):
        used = REGISTERS.search(said)
        if used is None:
            raise KernelCompileError(f"{kernel}: the compiler counted no registers")
        spills = sum(int(stored) + int(loaded) for stored, loaded in SPILLS.findall(said))
        reports.append(KernelReport(kernel, int(used[1]), spills, int(used[2] or 0)))
    return tuple(sorted(reports, key=lambda report: report.kernel))


def _compile(build: Build, arch: str) -> Compiled:
    defines = [f"--define-macro={define}" for define in build.defines]
    return nvrtc().compile(build.source, arch, [*OPTIONS, *defines])


def _write(path: Path, compiled: Compiled) -> None:
    """The log, then the cubin: where a cubin is, its log is."""
    for name, data in ((path.with_suffix(".log"), compiled.log.encode()), (path, compiled.cubin)):
        part = name.with_name(f".{name.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            part.write_bytes(data)
            part.replace(name)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock among processes and threads; the file stays."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rayvec_cubins_")


def _own_folder() -> Path:
    """A folder of this process, gone when it ends."""
    return Path(_temporary().name)


def main(words: Sequence[str] | None = None) -> None:
    """Compile everything and print a line a kernel."""
    parser = argparse.ArgumentParser(prog="python -m drivers.cuda.build", description=__doc__)
    parser.add_argument("--arch", nargs="+", default=list(ARCHS), metavar="sm_90")
    parser.add_argument("--folder", type=Path, default=None, help="the cache folder if left out")
    given = parser.parse_args(words)
    builds = [(theme, dtype) for theme in themes() for dtype in storage_types(theme)]
    cases = [(*build, arch) for build in builds for arch in given.arch]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = pool.map(lambda case: cubin_of(build_of(*case[:2]), case[2], given.folder), cases)
        print(f"{'arch':6} {'storage':9} {'registers':>9} {'spilled':>7} {'shared':>6}  kernel")
        for (_, dtype, arch), cubin in zip(cases, cubins):
            for r in report_of(cubin):
                figures = f"{r.registers:9} {r.spill_bytes:7} {r.shared_bytes:6}"
                print(f"{arch:6} {dtype!s:9} {figures}  {r.kernel}")


if __name__ == "__main__":
    main()
