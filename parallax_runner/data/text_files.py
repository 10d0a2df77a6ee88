"""Finds text files in a directory and returns their paths in the same order on every machine."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from parallax_runner.data.tokens import TextFile
from parallax_runner.errors import DataError
from parallax_runner.files.regular import kind_of


def find_files(root: Path, *, suffix: str = "", skipped_folders: Collection[str] = ()) -> list[TextFile]:
    """Returns the files under `root` whose names end in `suffix`, sorted by name. Hidden files are omitted. Symbolic
    links are followed, and each folder is read only once.

    Raises DataError if a directory cannot be read, or if a matching file is a FIFO, socket or device.
    """

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}.") from error

    found = []
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(root, onerror=refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in _visible(subfolders) if name not in skipped_folders)
        here = [Path(folder, name) for name in _visible(names) if name.endswith(suffix)]
        for path in here:
            refuse_special(path)
        found += here
    files = [TextFile(path.relative_to(root).as_posix(), path) for path in found]
    return sorted(files, key=lambda file: file.name)


def _visible(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]


def refuse_special(path: Path) -> None:
    """Raises DataError for a FIFO, socket or device, because reading from such a file might never end."""
    kind = kind_of(path)
    if kind is not None:
        raise DataError(f"{path}: expected only files and folders, but this is {kind}. Remove it.")
