"""Provides checkpoint paths that TensorFlow does not treat as patterns.

`RestoreV2` and `load_checkpoint` treat the prefix of a checkpoint as a pattern, and find no files if a folder's name
contains a bracket or a backslash. Escaping these characters does not help, because both functions later open the prefix
exactly as given.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_PATTERN = re.compile(r"[*?\[\\]")


@contextlib.contextmanager
def literal(prefix: Path) -> Iterator[str]:
    """Yields the path to pass to TensorFlow for `prefix`: the same path, or a different path to the same folder.

    The name of the prefix itself must not be a pattern (`is_pattern`).
    """
    if not is_pattern(str(prefix)):
        yield str(prefix)
        return
    folder = os.open(prefix.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{prefix.name}"
    finally:
        os.close(folder)


def literal_folder(folder: Path) -> Path:
    """Returns a path of `folder` that TensorFlow does not treat as a pattern. It is valid as long as this process
    lives."""
    if not is_pattern(str(folder)):
        return folder
    return Path(f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}")


def is_pattern(name: str) -> bool:
    """Returns whether TensorFlow would treat `name` as a pattern."""
    return _PATTERN.search(name) is not None
