"""Entries as files in a folder that all hosts see."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote

from parallax_runner.files.whole import write_whole
from parallax_runner.launch.manual import secret
from parallax_runner.launch.manual.entry import Entry, signed
from parallax_runner.launch.manual.stores.store import Store


class Folder(Store):
    """The files of one run; another run needs another folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(secret.of_folder(folder))
        self.folder = folder

    @classmethod
    def open(cls, address: SplitResult, *, is_driver: bool) -> Self:
        """Makes the folder and its secret."""
        return cls(Path(unquote(address.path)))

    def own_host(self) -> str | None:
        """A file system does not tell."""
        return None

    def keep(self, entry: Entry) -> None:
        """A file stays as it is; it is written again where somebody has removed it."""
        path = self._path(entry)
        if not path.exists():
            write_whole(path, signed(entry, self.secret))

    def withdraw(self, entry: Entry) -> None:
        """Removes the file."""
        self._path(entry).unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Oldest first. Files of others are left alone, and named in the log."""
        found = []
        for path in sorted(self.folder.glob("*.json"), key=_written_secs):
            try:
                entry = self.believed(str(path), path.read_bytes())
            except OSError:  # withdrawn meanwhile
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
