"""Checks that a journal names only paths inside its run's folder. Without this check, the author of a journal could
cause arbitrary files to be sent."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from parallax_runner.track.mlflow.outbox import folder_of
from parallax_runner.track.mlflow.store import EntryRefused


class Outside(EntryRefused):
    """An entry names a path outside the run's folder."""


def within(run_dir: Path, name: str) -> Path:
    """Returns the path of a file or folder that a journal of `run_dir` names.

    Raises Outside if the path is outside the folder, or if a symbolic link leads out of the folder.
    """
    path = run_dir / name
    _check(path, run_dir, name)
    return path


def within_outbox(run_dir: Path, name: str) -> Path:
    """Returns the path of a folder directly inside the outbox. Such a folder may be deleted after it has been sent.
    Raises Outside if the folder is elsewhere."""
    path, outbox = run_dir / name, folder_of(run_dir.resolve())
    resolved = _resolved(path)
    if resolved is None or resolved.parent != outbox or path.is_symlink():
        raise Outside(f"{name} is not in the outbox of this run, {outbox}")
    return path


def check_contents(path: Path, run_dir: Path) -> None:
    """Raises Outside if a symbolic link in `path` leads out of the run's folder, and EntryRefused if anything in `path`
    is not a file or a folder, or cannot be read. A missing path passes this check, because the store reports it."""
    entries = [path] if os.path.lexists(path) else []
    if path.is_dir():
        entries += [Path(folder) / name for folder, folders, names in os.walk(path) for name in [*folders, *names]]
    for entry in entries:
        if entry.is_symlink():
            _check(entry, run_dir, str(entry))
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            raise EntryRefused(f"{entry} cannot be read: {error.strerror}") from error
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise EntryRefused(f"{entry} is neither a file nor a folder")


def _check(path: Path, run_dir: Path, name: str) -> None:
    resolved = _resolved(path)
    if resolved is None or not resolved.is_relative_to(run_dir.resolve()):
        raise Outside(f"{name} is outside the run's folder {run_dir}. A journal may name only paths inside this folder")


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a symlink loop, or a NUL byte in the path
        return None
