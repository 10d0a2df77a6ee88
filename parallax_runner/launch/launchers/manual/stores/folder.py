"""A store whose entries are files in a folder that all hosts share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote

from parallax_runner.files.shared import is_regular, read_shared
from parallax_runner.files.whole import write_whole
from parallax_runner.launch.launchers.manual import secret
from parallax_runner.launch.launchers.manual.standby_entry import Entry, signed
from parallax_runner.launch.launchers.manual.stores.store import MOST_ENTRIES, MOST_ENTRY_BYTES, Store


class Folder(Store):
    """The files of one run. Each run needs its own folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(secret.of_folder(folder))
        self.folder = folder

    @classmethod
    def open(cls, address: SplitResult, *, is_driver: bool) -> Self:
        """Creates the folder and its secret if they do not exist."""
        return cls(Path(unquote(address.path)))

    def own_host(self) -> str | None:
        """Returns None: a folder has no address."""
        return None

    def keep(self, entry: Entry) -> None:
        """Writes the file if it is missing."""
        path = self._path(entry)
        if not is_regular(path):
            write_whole(path, signed(entry, self.secret))

    def withdraw(self, entry: Entry) -> None:
        """Removes the file."""
        self._path(entry).unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Returns the entries, oldest first. Whatever has no valid signature is ignored and reported in the log. Raises
        LaunchError if there are more than MOST_ENTRIES."""
        paths = list(itertools.islice(self.folder.glob("*.json"), MOST_ENTRIES + 1))
        self.check_number(len(paths), str(self.folder))
        found = []
        for path in sorted(paths, key=_written_secs):
            try:
                content = read_shared(path, MOST_ENTRY_BYTES)
            except FileNotFoundError:  # the entry was withdrawn
                continue
            except OSError as error:
                self.disbelieve(str(path), f"cannot be read: {error.strerror}")
                continue
            entry = self.believed(str(path), content)
            if entry is not None:
                found.append(entry)
        return found

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.role}-{entry.id}.json"


def _written_secs(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
