"""Lists the runs of this user that have not been sent completely. The list consists of one small file per run
directory, in the user's state folder.

A killed driver cannot send its run, so the next driver looks up such runs here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from parallax_runner.track.mlflow.run_id import replace_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """A run directory and its driver process. `process_started_secs` (Unix time) distinguishes the driver process from
    a later process with the same pid."""

    run_dir: str
    host: str
    pid: int
    process_started_secs: float

    @property
    def is_here(self) -> bool:
        """Returns whether the process runs, or ran, on this host."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Returns whether the process is still running. The result is valid only on the process's host."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.process_started_secs) < 1.0
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            return True


def folder() -> Path:
    """Returns the folder that contains the files of the list."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "parallax_runner" / "open_runs"


def register(run_dir: Path) -> None:
    """Records that this process is working in `run_dir`. Logs a warning if the state folder cannot be written."""
    entry = OpenRun(str(run_dir), socket.gethostname(), os.getpid(), psutil.Process().create_time())
    try:
        folder().mkdir(parents=True, exist_ok=True)
        replace_json(_path(run_dir), asdict(entry))
    except (OSError, RuntimeError) as error:
        log.warning("cannot add %s to the list of open runs: %s", run_dir, error)


def forget(run_dir: Path, entry: OpenRun | None = None) -> None:
    """Removes `run_dir` from the list by deleting its file. If `entry` is given, deletes the file only if the file
    still contains `entry`, which means that no other process has registered since."""
    try:
        if entry is None or entry in listed():
            _path(run_dir).unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        log.warning("cannot remove %s from the list of open runs: %s", run_dir, error)


def listed() -> list[OpenRun]:
    """Returns the entries of all hosts that share the folder, in no particular order."""
    found = []
    try:
        paths = list(folder().glob("*.json"))
    except (OSError, RuntimeError):
        return []
    for path in paths:
        try:
            found.append(OpenRun(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return found


def _path(run_dir: Path) -> Path:
    return folder() / f"{hashlib.sha256(str(run_dir).encode()).hexdigest()[:32]}.json"
