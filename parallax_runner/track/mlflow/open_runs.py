"""Which runs of this user are not yet told to the end: a small file for each run directory, in the user's state folder.

A driver that is killed can settle nothing itself; the next one finds it here.
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
    """A run directory and the process that works in it; `process_started_secs` (Unix time) tells it from a later one
    with the same number."""

    run_dir: str
    host: str
    pid: int
    process_started_secs: float

    @property
    def is_here(self) -> bool:
        """Whether its process is, or was, one of this host."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether its process still runs; ask only on its host."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.process_started_secs) < 1.0
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            return True


def folder() -> Path:
    """Where the files are."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "parallax_runner" / "open_runs"


def register(run_dir: Path) -> None:
    """Notes that this process works in `run_dir`. A state folder that cannot be written is a line in the log."""
    entry = OpenRun(str(run_dir), socket.gethostname(), os.getpid(), psutil.Process().create_time())
    try:
        folder().mkdir(parents=True, exist_ok=True)
        replace_json(_path(run_dir), asdict(entry))
    except (OSError, RuntimeError) as error:
        log.warning("%s is not noted as an open run: %s", run_dir, error)


def forget(run_dir: Path, entry: OpenRun | None = None) -> None:
    """Drops the note: all that `run_dir` has to tell is told. With `entry` only if the note still says that, and not
    that another process works there by now."""
    try:
        if entry is None or entry in listed():
            _path(run_dir).unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        log.warning("%s stays noted as an open run: %s", run_dir, error)


def listed() -> list[OpenRun]:
    """All notes, of all hosts that share the folder, in no order."""
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
