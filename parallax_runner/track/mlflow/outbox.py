"""The part of a run's folder in which files wait to be sent; nothing else is deleted after it was sent."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from parallax_runner.files.link_or_copy import link_or_copy

NAME = ".outbox"
_FILES = "files"


def folder_of(run_dir: Path) -> Path:
    """Where it is."""
    return run_dir / NAME


def hold(path: Path, run_dir: Path) -> Path:
    """Puts a file or folder that is elsewhere into the outbox, by links where it can, and returns it there.

    A journal names nothing outside of its run's folder. Raises OSError.
    """
    folder = folder_of(run_dir) / _FILES / uuid.uuid4().hex
    folder.mkdir(parents=True)
    held = folder / path.name
    try:
        if path.is_dir():
            shutil.copytree(path, held, copy_function=link_or_copy)
        else:
            link_or_copy(path.resolve(), held)
    except OSError:
        release(held)
        raise
    return held


def is_held(path: Path, run_dir: Path) -> bool:
    """Whether it is where `hold` puts files: in a folder directly in the outbox, to which no link leads."""
    folder = path.parent
    try:
        return folder.resolve().parent == folder_of(run_dir.resolve()) / _FILES and not folder.is_symlink()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a zero byte
        return False


def release(held: Path) -> None:
    """Deletes what `hold` has put there."""
    shutil.rmtree(held.parent, ignore_errors=True)
