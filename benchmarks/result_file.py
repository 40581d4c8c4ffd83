"""Result files: what was measured, on which machine, with which versions. Append only."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_result(
    name: str,
    settings: dict[str, Any],
    figures: Any,
    packages: list[str],
    *,
    folder: Path = RESULTS,
    begun: datetime | None = None,
) -> Path:
    """Write <name>-<UTC time>.json to the folder and return its path.

    begun: the time; who gives the same one again writes the file anew.
    """
    now = begun or datetime.now(timezone.utc)
    record = {
        "benchmark": name,
        "time": now.isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine(),
        "versions": {"python": platform.python_version(), **_versions(packages)},
        "settings": settings,
        "figures": figures,
    }
    path = folder / f"{name}-{now:%Y%m%dT%H%M%SZ}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def _versions(packages: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _machine() -> dict[str, Any]:
    """Processor, cores and the instruction sets that matter to the figures."""
    model, flags = platform.processor(), set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            if key.strip() == "flags":
                flags = set(value.split())
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")
    return {
        "processor": model,
        "logical_cores": os.cpu_count(),
        "instruction_sets": [flag for flag in wanted if flag in flags],
        "system": f"{platform.system()} {platform.release()}",
    }


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=RESULTS.parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
