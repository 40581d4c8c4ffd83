"""The kernels as the device runs them: a module a theme and storage type, fetched by plain name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from drivers.cuda.build import themes
from drivers.cuda.launch import SHARED_BYTES_LIMIT, Build, build_of, storage_types

CubinOf = Callable[[Build, str], Path]
"""A build and an architecture such as sm_90 -> the file of its module (`drivers.cuda.build`)."""


class KernelModules:
    """Kernels by theme, storage type and name. `loaded_total` counts modules."""

    def __init__(self, cupy: Any, arch: str, cubin_of: CubinOf) -> None:
        """arch: sm_90 and the like."""
        self._cupy = cupy
        self._arch = arch
        self._cubin_of = cubin_of
        self._modules: dict[tuple[str, np.dtype[Any]], Mapping[str, Any]] = {}
        self._shared_bytes: dict[int, int] = {}
        self.loaded_total = 0

    def load_all(self, dtype: np.dtype[Any]) -> None:
        """Every theme for a storage type, so that no batch waits for a compiler.

        Raises KernelCompileError.
        """
        wanted = [theme for theme in themes() if dtype in storage_types(theme)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # what is not cached, is compiled
            cubins = pool.map(
                lambda theme: self._cubin_of(build_of(theme, dtype), self._arch), wanted
            )
            for theme, _ in zip(wanted, cubins):
                self._module(theme, dtype)

    def kernel(self, theme: str, dtype: np.dtype[Any], name: str, shared_bytes: int) -> Any:
        """A kernel, allowed so many bytes of shared memory a block."""
        kernel = self._module(theme, dtype)[name]
        if shared_bytes > self._shared_bytes.get(id(kernel), SHARED_BYTES_LIMIT):
            kernel.max_dynamic_shared_size_bytes = shared_bytes
            self._shared_bytes[id(kernel)] = shared_bytes
        return kernel

    def _module(self, theme: str, dtype: np.dtype[Any]) -> Mapping[str, Any]:
        found = self._modules.get((theme, dtype))
        if found is None:
            found = self._load(build_of(theme, dtype))
            self._modules[theme, dtype] = found
            self.loaded_total += 1
        return found

    def _load(self, build: Build) -> Mapping[str, Any]:
        module = self._cupy.RawModule(path=str(self._cubin_of(build, self._arch)))
        kernels = {name: module.get_function(name) for name in build.kernels}
        for kernel in kernels.values():
            _ = kernel.kernel  # CuPy looks a name up when it is first used: here, not in a batch
        return kernels
