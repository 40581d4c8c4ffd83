"""NVIDIA's run-time compiler, NVRTC: CUDA source to a cubin, without nvcc and without a GPU.

The library and the headers come from wheels (nvidia-cuda-nvrtc and nvidia-cuda-runtime of one CUDA
version) or from a CUDA toolkit, wherever cuda.pathfinder finds them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from drivers.errors import KernelCompileError

NEEDED = (
    "the packages cuda-pathfinder, nvidia-cuda-nvrtc-cu12 and nvidia-cuda-runtime-cu12 (or those "
    "of CUDA 13), or a CUDA toolkit"
)


@dataclass(frozen=True)
class Compiled:
    """A module for one architecture, and what the compiler said of it, register counts too."""

    cubin: bytes
    log: str


class Nvrtc:
    """The loaded compiler. Threads may use it at once."""

    def __init__(self, library: str, include: str) -> None:
        """library: path of libnvrtc; include: the folder of cuda_fp16.h and cuda_bf16.h."""
        self._library = ctypes.CDLL(library)  # a call lets go of the GIL
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._include = include
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, source: str, arch: str, options: Sequence[str] = ()) -> Compiled:
        """One module for an architecture such as sm_90.

        Raises KernelCompileError with the compiler's messages.
        """
        program = ctypes.c_void_p()
        text = source.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, b"kernels.cu", 0, None, None)
        try:
            words = [f"--gpu-architecture={arch}", f"--include-path={self._include}", *options]
            argv = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
            status = self._library.nvrtcCompileProgram(program, len(words), argv)
            log = self._fetch(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise KernelCompileError(
                    f"NVRTC {self.version}, {' '.join(words)}: {self._message(status)}\n{log}"
                )
            return Compiled(self._fetch(program, "CUBIN"), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, program: ctypes.c_void_p, what: str) -> bytes:
        """The bytes of nvrtcGetWHAT."""
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        values = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, values)
        return values.raw

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise KernelCompileError(f"{name}: {self._message(status)}")

    def _message(self, status: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(status)
        return text.decode()


@functools.cache
def nvrtc() -> Nvrtc:
    """The compiler of this process. Raises KernelCompileError where there is none."""
    try:
        from cuda.pathfinder import (
            DynamicLibNotFoundError,
            find_nvidia_header_directory,
            load_nvidia_dynamic_lib,
        )
    except ImportError as error:
        raise KernelCompileError(f"cuda kernels: {error}; wanted {NEEDED}") from error
    try:
        library = load_nvidia_dynamic_lib("nvrtc").abs_path
    except DynamicLibNotFoundError as error:
        raise KernelCompileError(f"cuda kernels: no NVRTC: {error}; wanted {NEEDED}") from error
    include = find_nvidia_header_directory("cudart")
    if library is None or include is None:
        raise KernelCompileError(f"cuda kernels: no headers of CUDA; wanted {NEEDED}")
    return Nvrtc(library, include)
