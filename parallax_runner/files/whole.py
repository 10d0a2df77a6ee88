"""Writes a small file atomically. Imports nothing from the project."""

import fcntl
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces a file with one that has this content; text is written as UTF-8. A reader at the same time, or after a
    power failure, sees either the old or the new content. With several writers at once, the last one wins. Removes
    temporary files that killed writers of this file have left.

    Raises OSError with `path` as its file name.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        _remove_left_over(path)
        try:
            with _open_locked(partial) as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        # The error of a failed write has no file name.
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


def _open_locked(partial: Path) -> BinaryIO:
    """Creates and locks a file. The lock shows other writers that this one is alive. On a file system without locks,
    leftovers are never removed."""
    while True:
        file = open(partial, "xb")  # noqa: SIM115
        try:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # Another writer removed the file as a leftover before it was locked.


def _remove_left_over(path: Path) -> None:
    is_partial = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{32}").fullmatch
    with suppress(OSError):
        for name in filter(is_partial, os.listdir(path.parent)):
            _remove_unless_locked(path.with_name(name))


def _remove_unless_locked(partial: Path) -> None:
    with suppress(OSError):  # locked, already removed, or another user's
        # Opened for writing too, because NFS requires that for an exclusive lock.
        descriptor = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
        finally:
            os.close(descriptor)
