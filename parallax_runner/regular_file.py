"""Refuses to read what may never end: a FIFO, a socket, a device. Imports nothing of the project."""

import errno
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


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raises OSError where a path is there and no file that has an end; a folder passes, opening it fails by itself."""
    kind = kind_of(path)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind} and not a file", os.fspath(path))


def read_regular(path: Path) -> str:
    """The text of a file, UTF-8. Raises OSError where it is not one, and UnicodeDecodeError where that is no text."""
    check_regular(path)
    return path.read_text(encoding="utf-8")
