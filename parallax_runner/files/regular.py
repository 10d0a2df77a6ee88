"""Opens only regular files, because reading from a FIFO, a socket or a device may never end. Imports nothing from the
project."""

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
    """Returns `a FIFO`, `a socket` or `a device`. Returns None for a file, a folder, or a path that does not exist or
    cannot be examined."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError:
        return None


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading. Raises OSError for anything else, because opening a FIFO blocks and a device
    such as `/dev/zero` never ends."""
    kind = kind_of(path)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, os.strerror(code), os.fspath(path))
    return open(descriptor, "rb")


def read_regular(path: Path) -> str:
    """Returns the text of a regular UTF-8 file. Raises OSError if `path` is not a regular file, and UnicodeDecodeError
    if the content is not UTF-8."""
    with open_regular(path) as file:
        return file.read().decode("utf-8")
