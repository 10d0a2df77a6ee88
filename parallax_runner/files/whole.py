"""Writes a small file so that it is whole whenever somebody reads it. Imports nothing of the project."""

import fcntl
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces a file by one with this content, text as UTF-8: who reads it meanwhile, or after a power failure, finds
    the old or the new one, and of several writers at once the last one's. Removes what killed writers of this file
    have left.

    Raises OSError, which names `path`.
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
        # What fails is the writing as a rule, and its error names no file.
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


def _open_locked(partial: Path) -> BinaryIO:
    """Makes a file. Its lock tells others that the writer lives; a file system without locks removes no leftovers."""
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
        file.close()  # Another writer has taken it for a leftover before it was locked.


def _remove_left_over(path: Path) -> None:
    is_partial = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{32}").fullmatch
    with suppress(OSError):
        for name in filter(is_partial, os.listdir(path.parent)):
            _remove_unless_locked(path.with_name(name))


def _remove_unless_locked(partial: Path) -> None:
    with suppress(OSError):  # locked, gone meanwhile, or another user's
        # For writing too: NFS gives no exclusive lock otherwise.
        descriptor = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
        finally:
            os.close(descriptor)
