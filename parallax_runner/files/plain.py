"""Reads and replaces files in a folder that may be damaged. In a damaged folder, a FIFO, a device, a folder or a loop
of links can be in the place of a file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from parallax_runner.files.regular import open_regular

MOST_TEXT_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20


def read_text(path: Path) -> str:
    """Reads a text file. Raises OSError if `path` is not a readable file, and ValueError if the file is too large or
    not UTF-8."""
    content = bytearray()
    with open_regular(path) as file:
        # `read` first allocates as many bytes as it may return, which a limit of the address space can forbid.
        while len(content) <= MOST_TEXT_BYTES and (block := file.read(BLOCK_BYTES)):
            content += block
    if len(content) > MOST_TEXT_BYTES:
        raise ValueError(f"it is larger than {MOST_TEXT_BYTES} bytes")
    return content.decode("utf-8")


def read_object(path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the text of a JSON file and the object that it contains. Raises OSError if the file cannot be read, and
    ValueError if its content is not a valid JSON object."""
    text = read_text(path)
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    return text, fields


def object_in(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file. Returns an empty dict if there is no readable file with an object."""
    try:
        return read_object(path)[1]
    except (OSError, ValueError):
        return {}


def reason_of(error: OSError | ValueError) -> str:
    """Returns the message of an error, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def remove(path: Path) -> None:
    """Removes a file, a link (not its target) or a folder with its contents. Does nothing if the path does not
    exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(file: Path, target: Path) -> None:
    """Moves a file to `target`, and replaces anything that is already there."""
    if target.is_dir() and not target.is_symlink():
        remove(target)
    os.replace(file, target)
