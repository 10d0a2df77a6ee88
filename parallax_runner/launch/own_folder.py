"""A folder for the files of one run's processes, which is removed although its driver may be killed.

A lock that the kernel releases as the driver ends says whose folder is in use: what the next start of the same user on
the same host finds without one is a killed driver's. Other programs' and other hosts' folders have other names: a lock
on a network file system may hold on one host only. Where folders cannot be locked they are used without a lock, and
what a killed driver leaves stays.
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
    """What the names of this host's folders begin with; a part without a hyphen follows."""
    return f"parallax_runner-{socket.gethostname()}-"


class OwnFolder:
    """A new folder in `parent`. Raises OSError where none can be made."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls, parent: Path) -> Self:
        """A new one in `parent`. Raises OSError where that is impossible."""
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
            # Another start has taken it for a killed driver's before it was locked.

    def remove(self) -> None:
        """Removes it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def remove_left_over(parent: Path) -> None:
    """Removes this user's folders of this host in `parent` whose drivers are gone, as far as locks can tell."""
    for path in _own_folders(parent):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # Gone meanwhile.
            continue
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                log.info("removing %s, which a killed run has left", path)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def _own_folders(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            is_own = entry.name.rpartition("-")[0] + "-" == prefix() and entry.is_dir(follow_symlinks=False)
            if is_own and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                yield Path(entry.path)
