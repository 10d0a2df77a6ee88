"""Describes the state of the files that the configuration names. A changed state shows that the data has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_runner.data.text_files import find_files


def drawn_from(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that determine the distribution of the data. These are all settings except the seed, which
    determines only the order or the random numbers."""
    return {key: value for key, value in data.items() if key != "seed"}


def state_of(data: Mapping[str, Any]) -> list[list[int]]:
    """Returns one list for each path in a setting named `path` or `…_path`. The list contains the size in bytes and the
    modification time in ns of each file at that path."""
    named = [value for key, value in data.items() if key == "path" or key.endswith("_path")]
    return [_files(Path(value).expanduser()) for value in named if isinstance(value, str)]


def _files(path: Path) -> list[int]:
    if not path.exists():
        return []
    files = [file.path for file in find_files(path)] if path.is_dir() else [path]
    return [number for file in files for number in (file.stat().st_size, file.stat().st_mtime_ns)]
