"""Opens files that several processes lock. Imports nothing from the project.

Other users may be able to write to the folder of such a file: a FIFO in its place would block this process or each of
its writes, and a link would create or change a file elsewhere.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MODE = 0o666  # before the umask


def open_to_lock(path: Path) -> BinaryIO:
    """Opens a regular file for reading and appending, and creates it if it does not exist. The file is not inherited by
    other programs. Raises OSError if `path` is a link or anything else that is not a regular file."""
    # O_NONBLOCK makes opening a FIFO return, and has no effect on a regular file.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, MODE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return open(descriptor, "ab+", buffering=0)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[BinaryIO]:
    """Opens a file as `open_to_lock` does, and holds an exclusive lock on it. The kernel releases the lock when the
    process dies.

    Raises OSError, and BlockingIOError if another process holds the lock and `wait` is False.
    """
    with open_to_lock(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield file
