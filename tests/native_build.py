"""A pytest plugin: another build of the native module in the place of the installed one.

    RAYVEC_NATIVE_BUILD=build/sanitize python -m pytest -p tests.native_build tests/ops

The folder holds the compiled module, as CMake leaves it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

MODULE = "rayvec_native"


def load_build(folder: str) -> None:
    """Loads the module of that folder, before anything imports the installed one."""
    if MODULE in sys.modules:
        raise RuntimeError(f"{MODULE} is loaded already, from {sys.modules[MODULE].__file__}")
    (path,) = Path(folder).glob(f"{MODULE}.*.so")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE] = module


load_build(os.environ["RAYVEC_NATIVE_BUILD"])


def pytest_report_header() -> str:
    """The build that the tests ran on."""
    return f"{MODULE}: {sys.modules[MODULE].__file__}"
