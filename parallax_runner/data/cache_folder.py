"""A folder of the user's cache that one process makes and many read: with a lock, checksums, and published whole."""

from __future__ import annotations

import errno
import fcntl
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from parallax_runner.data.checksums import damage_of, write_sums
from parallax_runner.errors import DataError
from parallax_runner.files.locks import open_to_lock
from parallax_runner.process.limits import with_limit

log = logging.getLogger(__name__)

# An unfinished folder belongs to a dead process if nothing in it has changed for this time.
LEFT_BEHIND_SECS = 3600.0


@dataclass(frozen=True)
class CacheFolder:
    """A folder in the cache whose name depends on all inputs. `contents` says in messages what is in it."""

    path: Path
    contents: str

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the folder's lock, so that one process at a time verifies the folder or makes it. There is no lock in a
        read-only cache and on a file system without locks. There, each process that finds no folder makes it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = open_to_lock(self.path.with_name(f".{self.path.name}.lock"))
        except OSError:
            yield
            return
        with lock:
            try:
                self._wait_for(lock)
            except OSError as error:
                log.warning("%s cannot be locked: %s", lock.name, error.strerror)
            yield

    def _wait_for(self, lock: BinaryIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that makes or verifies %s", self.contents)
            fcntl.flock(lock, fcntl.LOCK_EX)

    def is_intact(self) -> bool:
        """Returns whether the folder exists and is intact. Removes a damaged folder. Raises DataError if the folder
        cannot be read."""
        try:
            if not self.path.exists():
                return False
        except OSError as error:
            raise self.unusable(error) from error
        try:
            damage = damage_of(self.path)
        except PermissionError as error:
            raise self.of_another_user(error) from error
        if damage is not None:
            self._remove(damage)
        return damage is None

    def publish(self, write: Callable[[Path], None]) -> None:
        """Calls `write` with a new folder and renames that folder, so that a reader sees either all files or no files.

        Raises DataError if the cache cannot be written.
        """
        unfinished = self._beside()
        try:
            self._remove_left_behind()
            unfinished.mkdir(parents=True)
            write(unfinished)
            write_sums(unfinished)
            self._rename_unless_there(unfinished)
        except OSError as error:
            raise self.unusable(error) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def unusable(self, error: OSError) -> DataError:
        """Returns the error of a cache that cannot be written."""
        # Errors raised by NumPy itself have a message but no errno.
        reason = with_limit(str(error.strerror or error))
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        wanted = "directory on a larger disk" if is_full else "writable directory"
        return DataError(
            f"{self.path.parent}: cannot write {self.contents}: {reason}. "
            f"Set data.cache_dir or XDG_CACHE_HOME to a {wanted}."
        )

    def damaged(self, damage: object) -> DataError:
        """Returns the error of a damaged folder that stays in its place."""
        return DataError(f"{self.path}: damaged cache of {self.contents}: {damage}. Delete the directory.")

    def of_another_user(self, error: PermissionError) -> DataError:
        """Returns the error of a folder that only its owner can read."""
        return DataError(
            f"{error.filename}: cannot be read, because it belongs to another user. Set data.cache_dir or "
            "XDG_CACHE_HOME to your own directory, or ask its owner to make the file readable."
        )

    def _beside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}")

    def _remove(self, damage: str) -> None:
        """Removes a damaged folder, or what is in its place. Renames it first, so that no process ever sees a part of a
        folder."""
        log.warning("%s: damaged cache of %s, making it anew: %s", self.path, self.contents, damage)
        moved = self._beside()
        try:
            self.path.rename(moved)
        except FileNotFoundError:  # without locks, another process can be first
            return
        except OSError as error:
            raise self.damaged(damage) from error
        if moved.is_dir():
            shutil.rmtree(moved, ignore_errors=True)
        else:
            moved.unlink()

    def _remove_left_behind(self) -> None:
        """Removes unfinished folders of processes that were killed. They can be as large as the data."""
        for folder in self.path.parent.glob(f"{self.path.name}.*"):
            if _changed_secs_ago(folder) > LEFT_BEHIND_SECS:
                log.warning("%s: removing an unfinished folder that a killed process has left behind", folder)
                shutil.rmtree(folder, ignore_errors=True)

    def _rename_unless_there(self, unfinished: Path) -> None:
        try:
            unfinished.rename(self.path)
        except OSError:
            if not self.path.exists():  # without locks, another process can be first, with the same contents
                raise


def _changed_secs_ago(folder: Path) -> float:
    """Returns the time since the last change of a folder or of a file in it, or 0 if it disappears meanwhile."""
    try:
        changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return 0.0
    return time.time() - changed
