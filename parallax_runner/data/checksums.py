"""Writes and verifies checksums of the files in a folder whose contents never change."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from parallax_runner.files.regular import open_regular, read_regular
from parallax_runner.files.whole import write_whole
from parallax_runner.process.limits import raise_if_limited

SUMS = "checksums.json"
CHECKED = "checked.json"
# After this time, unchanged files are verified again, because disks can corrupt data without reporting an error.
CHECKED_FOR_SECS = 24 * 3600.0


def write_sums(folder: Path) -> None:
    """Writes the checksums of all files in a folder to a new file in the same folder. Raises OSError if a file cannot
    be read or written."""
    sums = _sums(sorted(folder.iterdir()))
    write_whole(folder / SUMS, json.dumps(sums, indent=1) + "\n")


def sum_of(folder: Path, name: str) -> str:
    """Returns the recorded checksum of a file in a folder. Raises OSError if the checksums cannot be read, and
    ValueError if they are damaged or lack the file."""
    sums = _read_json(folder / SUMS)
    if not isinstance(sums, dict) or not isinstance(sums.get(name), str):
        raise ValueError(f"{SUMS} has no checksum of {name}")
    return str(sums[name])


def damage_of(folder: Path) -> str | None:
    """Verifies all files in a folder. Returns a description of the damage, or None if all files are intact.

    Unchanged files are verified only once every 24 hours: a file in the folder records the sizes and modification times
    of the verified files. Raises PermissionError if the files cannot be read, and
    LimitError if a limit of this process prevents it.
    """
    try:
        sums = _read_json(folder / SUMS)
        for path in folder.glob("[!.]*"):
            if path.name not in (SUMS, CHECKED, *sums):
                return f"{path.name} has no checksum"
        states = {name: _state(folder / name) for name in (*sums, SUMS)}
        if _was_checked(folder, states):
            return None
        found = _sums([folder / name for name in sums])
        for name, expected in sums.items():
            if found[name] != expected:
                return f"the content of {name} does not match its checksum"
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise_if_limited(error)
        return str(error)
    with suppress(OSError):  # in a read-only cache, each process verifies the files
        write_whole(folder / CHECKED, json.dumps({"time": time.time(), "states": states}) + "\n")
    return None


def _was_checked(folder: Path, states: dict[str, list[int]]) -> bool:
    try:
        checked = _read_json(folder / CHECKED)
        age_secs = time.time() - checked["time"]
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return False
    # A recorded time in the future means that the clock has been set back.
    return bool(checked.get("states") == states and 0 <= age_secs < CHECKED_FOR_SECS)


def _state(path: Path) -> list[int]:
    state = os.stat(path)
    return [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def _read_json(path: Path) -> Any:
    """Reads a JSON file. Raises OSError if `path` is not a readable file, and ValueError if the file is not valid
    JSON."""
    try:
        return json.loads(read_regular(path))
    except RecursionError as error:
        raise ValueError(f"the JSON in {path.name} is nested too deeply") from error


def _sums(paths: Sequence[Path]) -> dict[str, str]:
    """Returns the checksum of each file by its name. Reads as many files at a time as there are cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="checksums") as pool:
        return {path.name: found for path, found in zip(paths, pool.map(_sum, paths), strict=True)}


def _sum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
