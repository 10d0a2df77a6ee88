"""Hard-links or copies a file. Imports nothing from the project."""

import os
import shutil


def link_or_copy(file: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Makes a hard link to `file` at `target`, or a copy if no link is possible. Raises OSError."""
    try:
        os.link(file, target)
    except FileNotFoundError:
        raise
    except OSError:  # On another file system, or on one without hard links.
        shutil.copy2(file, target)
