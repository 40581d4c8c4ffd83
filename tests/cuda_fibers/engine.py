"""Compiles the source of CUDA kernels with g++ and runs them on CPU fibers (include/fibers.h)."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drivers.cuda.launch import KERNELS, Build, Launch

INCLUDE = Path(__file__).parent / "include"
FLAGS = ["-std=c++17", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-fno-strict-aliasing"]
PTX = (KERNELS / "tensor_cores.cuh").read_text(encoding="utf-8")  # include/tensor_cores.h its twin
SHARED = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")

ORDERS = ("ascending", "descending", "shuffled", "warp_greedy", "warp_greedy_reversed")
"""In which the threads of a block run, by number; what each means: include/fibers.h."""


C_TYPES = {np.int32: ctypes.c_int32, np.int64: ctypes.c_int64, np.float32: ctypes.c_float}


class FiberError(Exception):
    """A launch that went wrong: where, and how."""


def _c_value(argument: Any) -> Any:
    """An argument of a launch as it is passed in C."""
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous, "a launch takes contiguous arrays"
        return ctypes.c_void_p(argument.ctypes.data)
    return C_TYPES[type(argument)](argument)


class FiberModule:
    """Kernels of one source, compiled for the CPU. The names are those of `extern "C"`."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.PyDLL(str(library))  # holds the GIL: one launch at a time

    def run(self, launch: Launch, arguments: Sequence[Any], order: str) -> None:
        """One launch; arguments as in `drivers.cuda.device.Device.launch`, of NumPy's arrays.

        Raises FiberError where a thread leaves the memory of the launch or threads wait for ever.
        """
        values = [_c_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        entry = self._library[f"launch_{launch.kernel}"]
        entry.restype = ctypes.c_char_p
        message = entry(
            (ctypes.c_uint * 3)(*launch.grid),
            (ctypes.c_uint * 3)(*launch.block),
            ctypes.c_size_t(launch.shared_bytes),
            ctypes.c_int(ORDERS.index(order)),
            pointers,
            ctypes.c_size_t(len(values)),
        )
        if message is not None:
            raise FiberError(f"{launch.kernel}, {order}: {message.decode()}")


@functools.cache
def _folder(level: str) -> tempfile.TemporaryDirectory[str]:
    """Where this process keeps what it compiled, the engine first of all; gone when it ends."""
    folder = tempfile.TemporaryDirectory(prefix="cuda_fibers_")
    header = Path(folder.name) / "engine.h"
    header.write_text("#include <fibers.h>\n", encoding="utf-8")
    compiled = ["-x", "c++-header", str(header), "-o", f"{header}.gch"]
    subprocess.run(["g++", level, *FLAGS, f"-I{INCLUDE}", *compiled], check=True)
    return folder


@functools.cache
def compile_kernels(build: Build, level: str = "-O1") -> FiberModule:
    """The kernels of a build, compiled once in this process. level: of optimisation."""
    source = build.source.replace(PTX, "#include <tensor_cores.h>\n")
    if re.search(r"\basm\b", source):
        raise ValueError("wanted inline PTX in tensor_cores.cuh alone")
    on_fibers, found = SHARED.subn(r"\1* \2 = (\1*)fibers::machine.shared;", source)
    if "__shared__" in on_fibers:
        raise ValueError(f"wanted `extern __shared__ TYPE NAME[];` alone, found {found} of them")
    text = "\n".join(
        ['#include "engine.h"', on_fibers, *(f"FIBER_LAUNCH({name})" for name in build.kernels), ""]
    )
    stem = hashlib.sha256(repr((text, build.defines)).encode()).hexdigest()[:16]
    program, library = (Path(_folder(level).name) / f"{stem}{end}" for end in (".cpp", ".so"))
    program.write_text(text, encoding="utf-8")
    command = ["g++", level, *FLAGS, f"-I{INCLUDE}", *(f"-D{d}" for d in build.defines)]
    subprocess.run([*command, str(program), "-o", str(library)], check=True)
    return FiberModule(library)
