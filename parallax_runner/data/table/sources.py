"""Finds the files of a table's parts, and their state and format."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.data.table.shards import missing_shards
from parallax_runner.data.table.stored_table import TRAIN
from parallax_runner.data.text_files import find_files, refuse_special
from parallax_runner.errors import ConfigError, DataError, Setting

CSV, TSV, JSON_LINES, PARQUET, ARROW, TFRECORD = "csv", "tsv", "jsonl", "parquet", "arrow", "tfrecord"
AUTO = "auto"
_FORMAT_OF_SUFFIX = {
    ".csv": CSV,
    ".tsv": TSV,
    ".tab": TSV,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".json": JSON_LINES,
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".arrow": ARROW,
    ".arrows": ARROW,
    ".feather": ARROW,
    ".ipc": ARROW,
    ".tfrecord": TFRECORD,
    ".tfrecords": TFRECORD,
}
FORMATS = (CSV, TSV, JSON_LINES, PARQUET, ARROW, TFRECORD)
COMPRESSION_OF_SUFFIX = {".gz": "gzip", ".zst": "zstd"}
_IS_PATTERN = frozenset("*?[")


@dataclass(frozen=True)
class Sources:
    """The files of a table. `parts` has paths for "train", and maybe for "validation" and "test". A path is a file, a
    folder or a glob. With the format "auto", the names of the files determine it. `header` has the names of the
    columns if the files do not begin with them."""

    parts: Mapping[str, tuple[str, ...]]
    format: str = AUTO
    delimiter: str | None = None
    header: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SourceFile:
    """A file to read, as it was when it was found. `name` is the same on every machine."""

    name: str
    path: Path
    size_bytes: int
    changed_ns: int

    @property
    def compression(self) -> str | None:
        """The compression that the file's name shows, or None."""
        return COMPRESSION_OF_SUFFIX.get(self.path.suffix)

    @property
    def format_by_name(self) -> str | None:
        """The format that the file's name shows, or None."""
        suffixes = [suffix for suffix in self.path.suffixes if suffix not in COMPRESSION_OF_SUFFIX]
        return _FORMAT_OF_SUFFIX.get(suffixes[-1].lower()) if suffixes else None

    def check_unchanged(self) -> None:
        """Raises DataError if the file is not as it was when it was found."""
        if _found(self.name, self.path) != self:
            raise DataError(f"{self.path}: this file changed while it was read. Start again when it is complete.")


def files_of(sources: Sources) -> dict[str, list[SourceFile]]:
    """Returns the files of each part, in the order of the paths, and sorted by name within a folder or a glob.

    Raises DataError if a path matches no file, or a file is empty.
    """
    if not sources.parts.get(TRAIN):
        raise ConfigError("expected the paths of files.").about(Setting.of("data.train", None))
    return {part: [file for path in paths for file in _files_at(path, part)] for part, paths in sources.parts.items()}


def format_of(sources: Sources, files: Mapping[str, list[SourceFile]]) -> str:
    """Returns the one format of all files. Raises ConfigError if it is unknown."""
    if sources.format != AUTO:
        _check_format(sources.format)
        return sources.format
    named = {file.format_by_name: file for part in files.values() for file in part}
    formats = sorted(one for one in named if one is not None)
    if None in named:
        raise ConfigError(f"{named[None].path}: the name does not show the format.").about(
            Setting.of("data.format", AUTO), remedy=_set_format()
        )
    if len(formats) > 1:
        raise ConfigError(f"expected files of one format, got {' and '.join(formats)}.").about(
            Setting.of("data.format", AUTO), remedy=_set_format()
        )
    return formats[0]


def _check_format(name: str) -> None:
    if name not in FORMATS:
        raise ConfigError(f"expected {AUTO} or one of {', '.join(FORMATS)}.").about(Setting.of("data.format", name))


def _set_format() -> str:
    return f"Set data.format to one of {', '.join(FORMATS)}."


def _files_at(path: str, part: str) -> list[SourceFile]:
    setting = Setting.of(f"data.{part}", path)
    if not path:
        raise ConfigError("expected the path of a file or a folder.").about(setting)
    root = Path(path).expanduser()
    if root.is_dir():
        found = [_found(file.name, file.path) for file in find_files(root)]
        _check_shards(found, root, setting)
    elif root.exists():
        refuse_special(root)
        found = [_found(root.name, root)]
    elif _IS_PATTERN & set(path):
        found = _matches(root)
        _check_shards(found, root, setting)
    else:
        raise DataError("there is no such file or folder.").about(setting)
    if not found:
        raise DataError("no file there. Expected files with rows.").about(setting)
    for file in found:
        if file.size_bytes == 0:
            raise DataError(f"{file.path}: this file is empty. Expected rows.").about(setting, remedy="Remove it.")
    return found


def _check_shards(found: Sequence[SourceFile], root: Path, setting: Setting) -> None:
    """Raises DataError if files of a numbered set are missing. A glob can choose some files of a set."""
    names = missing_shards(file.path.as_posix() for file in found)
    missing = [name for name in names if root.is_dir() or fnmatch.fnmatchcase(name, root.as_posix())]
    if missing:
        more = f", and {len(missing) - 1} more of these files" if len(missing) > 1 else ""
        raise DataError(f"{missing[0]} is missing{more}.").about(
            setting, remedy="Add it, or name the files to use with a list or a narrower glob"
        )


def _matches(pattern: Path) -> list[SourceFile]:
    paths = [Path(one) for one in sorted(glob.glob(str(pattern), recursive=True))]
    files = [path for path in paths if not path.is_dir()]
    for path in files:
        refuse_special(path)
    fixed = _folder_of(pattern)
    return [_found(path.relative_to(fixed).as_posix(), path) for path in files]


def _folder_of(pattern: Path) -> Path:
    """Returns the deepest folder of a glob that has no wildcard."""
    folder = Path(pattern)
    while _IS_PATTERN & set(str(folder)):
        folder = folder.parent
    return folder


def _found(name: str, path: Path) -> SourceFile:
    try:
        state = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    return SourceFile(name, path, state.st_size, state.st_mtime_ns)
