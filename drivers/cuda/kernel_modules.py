"""The kernels as the device runs them: a module a theme and storage type, fetched by plain name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from drivers.cuda.launch import KERNELS, SHARED_BYTES_LIMIT, build_of
from drivers.errors import KernelError

LANGUAGE = "-std=c++17"


def themes() -> tuple[str, ...]:
    """All files of kernels, by name."""
    return tuple(sorted(path.stem for path in KERNELS.glob("*.cu") if path.stem != "prelude"))


class KernelModules:
    """Kernels by theme, storage type and name, compiled when they are first asked for.

    `compiled_total` counts modules.
    """

    def __init__(self, cupy: Any, device: str) -> None:
        """device: its name, for messages."""
        self._cupy = cupy
        self._device = device
        self._modules: dict[tuple[str, np.dtype[Any]], Mapping[str, Any]] = {}
        self._shared_bytes: dict[int, int] = {}
        self.compiled_total = 0

    def compile_all(self, dtype: np.dtype[Any]) -> None:
        """Every theme for a storage type, so that no batch waits for a compiler."""
        for theme in themes():
            self._module(theme, dtype)

    def kernel(self, theme: str, dtype: np.dtype[Any], name: str, shared_bytes: int) -> Any:
        """A kernel, allowed so many bytes of shared memory a block.

        Raises KernelError where it cannot be compiled, or the device has no such memory.
        """
        kernel = self._module(theme, dtype)[name]
        if shared_bytes > self._shared_bytes.get(id(kernel), SHARED_BYTES_LIMIT):
            kernel.max_dynamic_shared_size_bytes = shared_bytes
            self._shared_bytes[id(kernel)] = shared_bytes
        return kernel

    def _module(self, theme: str, dtype: np.dtype[Any]) -> Mapping[str, Any]:
        found = self._modules.get((theme, dtype))
        if found is None:
            found = self._compile(theme, dtype)
            self._modules[theme, dtype] = found
            self.compiled_total += 1
        return found

    def _compile(self, theme: str, dtype: np.dtype[Any]) -> Mapping[str, Any]:
        build = build_of(theme, dtype)
        options = (LANGUAGE, *(f"-D{define}" for define in build.defines))
        try:
            module = self._cupy.RawModule(code=build.source, options=options, backend="nvrtc")
            module.compile()
            kernels = {name: module.get_function(name) for name in build.kernels}
            for kernel in kernels.values():
                _ = (
                    kernel.kernel
                )  # CuPy looks a name up when it is first used: here, not in a batch
            return kernels
        except self._cupy.cuda.compiler.CompileException as error:
            said = [line for line in str(error).splitlines() if "error" in line]
            first = (said or str(error).splitlines() or ["no message"])[0].strip()
            raise KernelError(f"{self._device}: {theme} for {dtype}: {first}") from error
