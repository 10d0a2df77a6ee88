"""Tells why a path cannot be used, without writing to it."""

from __future__ import annotations

import os
from pathlib import Path

from parallax_runner.files.regular import kind_of
from parallax_runner.files.text_encoding import undecoded

KERNEL = (("/", "proc"), ("/", "sys"))  # file systems in which folders cannot be created
BELOW_BYTES = 256  # bytes of a path that are reserved for files below the run directory


def unwritable(path: str) -> str | None:
    """Returns the reason why a folder cannot be created or written at `path`, or None if this seems possible."""
    if (undecodable := undecoded(path)) is not None:
        return f"the path cannot be read: {undecodable}"
    if path.startswith("~") and not os.path.lexists(path):
        return f"~ is not expanded here; write {os.path.expanduser(path)}"
    whole = nearest = os.path.abspath(path)
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest):
        return f"expected a folder, but {nearest} is a file"
    if (too_long := _too_long(whole, nearest)) is not None:
        return too_long
    return None if _is_writable(nearest) else f"the folder {nearest} is not writable"


def _too_long(whole: str, existing: str) -> str | None:
    """Returns the reason why the file system of the folder `existing` cannot have the path `whole`, or None."""
    most_bytes = os.pathconf(existing, "PC_NAME_MAX")
    names = os.path.relpath(whole, existing).split(os.sep)
    if any(len(os.fsencode(name)) > most_bytes for name in names):
        return f"a name in the path has more than {most_bytes} bytes"
    if len(os.fsencode(whole)) + BELOW_BYTES > os.pathconf(existing, "PC_PATH_MAX"):
        return "the path is too long"
    return None


def _is_writable(folder: str) -> bool:
    # Even for root, os.access detects a read-only file system, but its result is wrong for the kernel's own file
    # systems.
    if Path(os.path.realpath(folder)).parts[:2] in KERNEL:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def unreadable(path: str) -> str | None:
    """Returns the reason why training data cannot be read from `path`, which is a file or a folder. Returns None if the
    data can be read."""
    if not os.path.exists(path):
        return f"no such file or folder; looked for {os.path.abspath(path)}"
    if os.path.isdir(path):
        return _unreadable_folder(path)
    kind = kind_of(path)
    if kind is not None:
        return f"expected a file or a folder, but this is {kind}"
    return None if os.access(path, os.R_OK) else "this file cannot be read"


def _unreadable_folder(path: str) -> str | None:
    if not os.access(path, os.R_OK | os.X_OK):
        return "this folder cannot be read"
    if not any(files for _, _, files in os.walk(path, followlinks=True)):
        return "this folder contains no files"
    return None
