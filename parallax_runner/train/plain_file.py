"""Files of a folder that may be damaged: a FIFO, a device, a folder or a loop of links may take a file's place."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

MOST_TEXT_BYTES = 64 << 20


def open_plain(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading. Raises OSError for everything else: opening a FIFO blocks, and a device such as
    `/dev/zero` never ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        reason = os.strerror(code) if stat.S_ISDIR(mode) else "Not a regular file"
        raise OSError(code, reason, str(path))
    return open(descriptor, "rb")


def read_text(path: Path) -> str:
    """Raises OSError where it is no readable file, and ValueError where it is no text of bearable size."""
    with open_plain(path) as file:
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
