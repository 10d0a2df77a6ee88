"""Writes a small file so that it is whole whenever somebody reads it. Imports nothing of the project."""

import os
import uuid
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replaces a file by one with this text: who reads it meanwhile, or after a power failure, finds the old or the new
    one, and of several writers at once the last one's.

    Raises OSError, which names `path`.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        try:
            with open(partial, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        # What fails is the writing as a rule, and its error names no file.
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
