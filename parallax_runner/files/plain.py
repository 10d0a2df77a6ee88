"""Files of a folder that may be damaged: a FIFO, a device, a folder or a loop of links may take a file's place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from parallax_runner.files.regular import open_regular

MOST_TEXT_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """Raises OSError where it is no readable file, and ValueError where it is no text of bearable size."""
    with open_regular(path) as file:
        content = file.read(MOST_TEXT_BYTES + 1)
    if len(content) > MOST_TEXT_BYTES:
        raise ValueError(f"it has more than {MOST_TEXT_BYTES} bytes")
    return content.decode("utf-8")


def read_object(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a JSON file and the object in it. Raises OSError where it cannot be read, and ValueError where it is
    no JSON object, whatever is wrong with it."""
    text = read_text(path)
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    return text, fields


def reason_of(error: OSError | ValueError) -> str:
    """What is wrong, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def remove(path: Path) -> None:
    """Removes a file, a link (not what it leads to) or a folder with all in it; nothing where nothing is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(file: Path, target: Path) -> None:
    """Moves a file to `target`, whatever is there now."""
    if target.is_dir() and not target.is_symlink():
        remove(target)
    os.replace(file, target)
