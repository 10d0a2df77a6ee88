"""Determines the store to which a journal is sent. The journal contains the store's URI, and the environment contains
the password."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

from parallax_runner.config.tracking_uri import TRACKING_URI, password_remedy
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.credentials import MASK, has_credentials, masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.journal import Header
from parallax_runner.track.mlflow.store import Refused
from parallax_runner.track.mlflow.store_check import absolute_uri


def chosen_uri(configured: str | None) -> str:
    """Returns the full URI of the store that `configured` (the value of `tracking.uri`) names. If `configured` is None,
    returns the URI from the environment.

    Raises ConfigError if there is no URI, or if the configuration contains a password.
    """
    if configured is None:
        uri = os.environ.get(TRACKING_URI)
        if not uri:
            raise ConfigError(
                f"expected the store's URI in the environment variable {TRACKING_URI}, which is not set."
            ).about(
                Setting("tracking.uri", "null"),
                remedy="Set the variable, or set a store, such as tracking.uri=sqlite:///mlflow.db",
            )
        return absolute_uri(uri)
    if has_credentials(configured):
        raise ConfigError(password_remedy(configured)).about(Setting.of("tracking.uri", masked_uri(configured)))
    return absolute_uri(configured)


def addressed(path: Path, uri: str | None) -> Header:
    """Returns a journal's header with the full URI of the store to which the journal is sent: `uri`, or else the store
    that the journal names. The header keeps the sweep only if the journal is in the sweep's folder.

    Raises Refused if the journal belongs to another user, or if the full URI is unknown.
    """
    check_owner(path)
    header = journals.read_header(path)
    parent = header.parent if header.parent is not None and _is_below(path, header.parent) else None
    return dataclasses.replace(header, uri=uri or _with_password(header.uri), parent=parent)


def check_owner(path: Path) -> None:
    """Raises Refused if a journal belongs to another user."""
    if is_foreign(path):
        raise Refused(
            f"{path} belongs to another user, and only its owner can send it. To send it as a run of your own, copy "
            "the run directory, look at the copy, and send the copy with tracking.uri=STORE"
        )


def _is_below(path: Path, folder: str) -> bool:
    try:
        return path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, RuntimeError, ValueError):  # a symlink loop, or a NUL byte in the path
        return False


def is_foreign(path: Path) -> bool:
    """Returns whether another user wrote a file. Some file systems give new files a uid that differs from the user's
    uid. Files with that uid count as the user's own files."""
    uid = path.lstat().st_uid
    return uid != os.geteuid() and uid != _uid_of_new_files(path.parent)


def _uid_of_new_files(folder: Path) -> int:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()


def _with_password(written: str) -> str:
    if MASK not in written:
        return written
    uri = absolute_uri(os.environ.get(TRACKING_URI, ""))
    if masked_uri(uri) != written:
        raise Refused(
            f"tracking.uri={written} needs a password: set {TRACKING_URI} to this URI, with the password in "
            f"place of {MASK}"
        )
    return uri
