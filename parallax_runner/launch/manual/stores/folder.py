"""A store whose entries are files in a folder that all hosts share."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote

from parallax_runner.files.whole import write_whole
from parallax_runner.launch.manual import secret
from parallax_runner.launch.manual.entry import Entry, signed
from parallax_runner.launch.manual.stores.store import Store


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
        if not path.exists():
            write_whole(path, signed(entry, self.secret))

    def withdraw(self, entry: Entry) -> None:
        """Removes the file."""
        self._path(entry).unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Returns the entries, oldest first. Files without a valid signature are ignored and reported in the log."""
        found = []
        for path in sorted(self.folder.glob("*.json"), key=_written_secs):
            try:
                entry = self.believed(str(path), path.read_bytes())
            except OSError:  # the entry was withdrawn
                continue
            if entry is not None:
                found.append(entry)
        return found

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.role}-{entry.id}.json"


def _written_secs(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
