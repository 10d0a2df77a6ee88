"""Opens files that are written in place, such as logs. Imports nothing from the project.

A run folder can contain links that another user placed there. Writing through such a link would change a file outside
the run folder. Files that are replaced whole need no check: see whole.py.
"""

import errno
import os
import stat
from pathlib import Path


def open_in_place(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file for writing and returns its descriptor. Creates the file if it does not exist.

    `flags` are those of `os.open`, for example `os.O_WRONLY | os.O_APPEND`. Raises OSError if `path` is a link or
    anything else than a regular file.
    """
    guarded = flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # The mode is that of `open`, so that the permissions follow the umask.
        descriptor = os.open(path, guarded, 0o666)
    except OSError as error:
        raise OSError(error.errno, fault_of_place(path) or error.strerror, os.fspath(path)) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, fault_of_place(path) or "it is not a regular file", os.fspath(path))


def fault_of_place(path: str | os.PathLike[str]) -> str | None:
    """Returns why nothing is written at `path`, with the remedy. Returns None for a regular file, a folder, or if
    nothing is there."""
    try:
        kind = stat.S_IFMT(Path(path).lstat().st_mode)
    except OSError:
        return None
    if kind == stat.S_IFLNK:
        return "it is a symbolic link, through which nothing is written: remove it"
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        return None
    return "it is not a regular file: remove it"
