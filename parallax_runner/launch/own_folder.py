"""A folder for the files of one run's processes. If the driver is killed, the next driver removes the folder.

The driver holds a lock on its folder, which the kernel releases when the driver exits. The next driver of the same user
on the same host removes all folders without a lock. Folders of other hosts have different names, because a lock on a
network file system may be valid on one host only. If a folder cannot be locked, it is used without a lock, and it is
not removed if its driver is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

log = logging.getLogger(__name__)


def prefix() -> str:
    """Returns the prefix of the names of this host's folders. The rest of a folder's name contains no hyphen."""
    return f"parallax_runner-{socket.gethostname()}-"


class OwnFolder:
    """A folder that this process has locked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls, parent: Path) -> Self:
        """Creates a new folder in `parent`. Raises OSError if that is impossible."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix(), dir=parent))
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                except OSError as error:  # Some network file systems do not lock folders.
                    log.info("%s cannot be locked: %s", path, error)
                if path.exists():
                    return cls(path, descriptor)
                os.close(descriptor)
            # Another driver removed the folder before this process locked it, because the folder looked as if a killed
            # driver had left it.

    def remove(self) -> None:
        """Removes the folder with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def remove_left_over(parent: Path) -> None:
    """Removes the folders in `parent` that drivers of this user left behind on this host. A folder without a lock is
    treated as left behind."""
    for path in _own_folders(parent):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # Another process has removed the folder.
            continue
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                log.info("removing %s, which a killed run left behind", path)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def _own_folders(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            is_own = entry.name.rpartition("-")[0] + "-" == prefix() and entry.is_dir(follow_symlinks=False)
            if is_own and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                yield Path(entry.path)
