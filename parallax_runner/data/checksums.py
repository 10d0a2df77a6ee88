"""Checksums of the files of a folder that is written once: whether they still are what was written."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from parallax_runner.files.regular import open_regular, read_regular
from parallax_runner.files.whole import write_whole

SUMS = "checksums.json"
CHECKED = "checked.json"
# After this time the files are read again although nothing says that they have changed: disks lose bits in silence.
CHECKED_FOR_SECS = 24 * 3600.0


def write_sums(folder: Path) -> None:
    """Notes the checksum of each file of a folder in the folder. Raises OSError."""
    sums = {path.name: _sum(path) for path in sorted(folder.iterdir())}
    write_whole(folder / SUMS, json.dumps(sums, indent=1) + "\n")


def damage_of(folder: Path) -> str | None:
    """What is wrong with the files, None where they are what was written; reads all of them.

    That is done once and not by each process of a run: a note tells which state of the files, to the time of their last
    change, was found right. Raises PermissionError where they cannot be read.
    """
    try:
        sums = _read_json(folder / SUMS)
        for path in folder.glob("[!.]*"):
            if path.name not in (SUMS, CHECKED, *sums):
                return f"{path.name} has no checksum"
        states = {name: _state(folder / name) for name in (*sums, SUMS)}
        if _was_checked(folder, states):
            return None
        for name, expected in sums.items():
            if _sum(folder / name) != expected:
                return f"the content of {name} does not match its checksum"
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return str(error)
    with suppress(OSError):  # a cache that is only for reading: then each process reads the files
        write_whole(folder / CHECKED, json.dumps({"time": time.time(), "states": states}) + "\n")
    return None


def _was_checked(folder: Path, states: dict[str, list[int]]) -> bool:
    try:
        checked = _read_json(folder / CHECKED)
        age_secs = time.time() - checked["time"]
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return False
    # A note from the future is of a clock that was set back since.
    return bool(checked.get("states") == states and 0 <= age_secs < CHECKED_FOR_SECS)


def _state(path: Path) -> list[int]:
    state = os.stat(path)
    return [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def _read_json(path: Path) -> Any:
    """Raises OSError where it is no readable file, and ValueError where it is no JSON."""
    try:
        return json.loads(read_regular(path))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error


def _sum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
