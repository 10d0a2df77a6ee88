"""Adds folders and files to MLflow's artifacts, and stores large files once if MLflow keeps artifacts on the same file
system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from parallax_runner.files.link_or_copy import link_or_copy

# Smaller files are copied. MLflow may write to some of them later, such as the description of a model, and would write
# through a link.
LEAST_LINKED_BYTES = 1 << 20


def add_folder(folder: Path, uri: str, artifact_path: str | None, send: Callable[[], None]) -> None:
    """Adds the contents of `folder` to the artifacts at `uri`, at the path `artifact_path` if it is not None.

    If the artifacts are in a folder of this machine, large files become hard links to those in `folder`, so nothing may
    write to these later. Otherwise, calls `send`, which uploads the folder.
    """
    artifacts = local_folder(uri)
    if artifacts is None:
        send()
        return
    target = artifacts if artifact_path is None else artifacts / artifact_path
    shutil.copytree(folder, target, copy_function=_link_large, dirs_exist_ok=True)


def add_file(file: Path, uri: str, send: Callable[[], None]) -> None:
    """Adds a file to the artifacts at `uri`, under its own name.

    If the artifacts are in a folder of this machine, a large file becomes a hard link to `file`, so nothing may write
    to it later. Otherwise, calls `send`, which uploads the file.
    """
    target = local_folder(uri)
    if target is None:
        send()
        return
    target.mkdir(parents=True, exist_ok=True)
    _link_large(str(file), str(target / file.name))


def local_folder(uri: str) -> Path | None:
    """Returns the folder with the artifacts at `uri`, or None if they are not in a folder of this machine."""
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import is_local_uri

    return Path(local_file_uri_to_path(uri)) if is_local_uri(uri) else None


def replace_by_link(file: str, target: str) -> None:
    """Links or copies `file` to `target`. A file that an interrupted attempt left at `target` is removed first: a copy
    could be incomplete."""
    Path(target).unlink(missing_ok=True)
    link_or_copy(os.path.realpath(file), target)


def _link_large(file: str, target: str) -> None:
    if os.path.getsize(file) >= LEAST_LINKED_BYTES:
        replace_by_link(file, target)
        return
    Path(target).unlink(missing_ok=True)  # a link that an earlier attempt has left
    shutil.copy2(file, target)
