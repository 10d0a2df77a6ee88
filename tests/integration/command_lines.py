"""Reads the command lines of a run's processes, which every user of the machine can read, and looks for secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import psutil

from parallax_runner.launch.control import wire


def control_secrets(processes: Iterable[psutil.Process]) -> set[str]:
    """Returns the secrets of control connections that these processes have in their environment."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):  # the process has ended meanwhile
            found.add(process.environ().get(wire.CONTROL_SECRET, ""))
    return found - {""}


def showing(secrets: Iterable[str]) -> Iterator[str]:
    """Returns the command lines of all processes of this machine that contain one of the secrets."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if any(secret in line for secret in secrets):
                yield line
