"""Refuses to read what may never end: a FIFO, a socket, a device. Imports nothing of the project."""

import errno
import io
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """«a FIFO» and the like; None for a file, a folder, and what is not there or cannot be looked at."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError:
        return None


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a file for reading. Raises OSError for everything else: opening a FIFO blocks, and a device such as
    `/dev/zero` never ends."""
    kind = kind_of(path)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind} and not a file", os.fspath(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, os.strerror(code), os.fspath(path))
    return open(descriptor, "rb")


def read_regular(path: Path) -> str:
    """The text of a file, UTF-8. Raises OSError where it is not one, and UnicodeDecodeError where that is no text."""
    with open_regular(path) as file:
        return file.read().decode("utf-8")
