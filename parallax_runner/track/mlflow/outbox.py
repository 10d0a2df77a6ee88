"""The outbox: the part of a run's folder in which files wait to be sent. Only files in the outbox are deleted after
they have been sent."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from parallax_runner.files.link_or_copy import link_or_copy

NAME = ".outbox"
_FILES = "files"


def folder_of(run_dir: Path) -> Path:
    """Returns the path of the outbox."""
    return run_dir / NAME


def hold(path: Path, run_dir: Path) -> Path:
    """Puts a file or folder from elsewhere into the outbox, using hard links if possible, and returns the path in the
    outbox.

    This is necessary because a journal can name only paths inside its run's folder. Raises OSError if the copy fails.
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
    """Returns whether a path is in a location where `hold` puts files: in a folder of the outbox that is not a symbolic
    link."""
    folder = path.parent
    try:
        return folder.resolve().parent == folder_of(run_dir.resolve()) / _FILES and not folder.is_symlink()
    except (OSError, RuntimeError, ValueError):  # a symlink loop, or a NUL byte in the path
        return False


def release(held: Path) -> None:
    """Deletes a path that `hold` returned, together with the folder that `hold` created for it."""
    shutil.rmtree(held.parent, ignore_errors=True)
