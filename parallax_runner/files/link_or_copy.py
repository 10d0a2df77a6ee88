"""Hard-links or copies a file. Imports nothing from the project."""

import os
import shutil


def link_or_copy(file: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Creates a hard link to `file` at `target`, or a copy if a link is not possible. Raises
    OSError, also if something is already at `target`."""
    try:
        os.link(file, target)
    except (FileNotFoundError, FileExistsError):
        raise  # a copy would be written through a link at `target`
    except OSError:  # `target` is on another file system, or the file system has no hard links
        shutil.copy2(file, target)
