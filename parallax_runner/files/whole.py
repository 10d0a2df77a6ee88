"""Writes a file atomically. Imports nothing from the project."""

import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces the content of a file; text is written as UTF-8. See `writing_whole`."""
    with writing_whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Replaces the content of a file with what the `with` block writes. Concurrent readers, and readers after a power
    failure, see either the old or the new content. If there are several writers at once, the last writer wins. Also
    removes temporary files left by killed writers of this file.

    Raises OSError with `path` as its file name.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        _remove_left_over(path)
        try:
            with _open_locked(partial) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        # The OSError of a failed write contains no file name.
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


def _open_locked(partial: Path) -> BinaryIO:
    """Creates and locks a file. The lock shows other writers that this writer is alive. On a file system without locks,
    leftover files are never removed."""
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
        file.close()  # Another writer removed the file before it was locked.


def _remove_left_over(path: Path) -> None:
    is_partial = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{32}").fullmatch
    with suppress(OSError):
        for name in filter(is_partial, os.listdir(path.parent)):
            _remove_unless_locked(path.with_name(name))


def _remove_unless_locked(partial: Path) -> None:
    with suppress(OSError):  # the file is locked, is already removed, or belongs to another user
        # The file is also opened for writing, because NFS requires this for an exclusive lock.
        descriptor = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
        finally:
            os.close(descriptor)
