"""Checks the store that a configuration names, as far as possible without importing MLflow."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path

from parallax_runner.config.tracking_uri import corrected_sqlite, is_in_memory
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.access import unwritable
from parallax_runner.files.credentials import masked_uri
from parallax_runner.files.regular import kind_of
from parallax_runner.track.mlflow.store_lock import sqlite_path, sqlite_uri

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
SCHEMES = (*DATABASES, "http", "https", "databricks")
_MAGIC = b"SQLite format 3\0"


def check_store(uri: str | None, experiment: str) -> None:
    """Raises ConfigError if runs can never be recorded in this store. Does not check whether a server answers."""
    if not uri:
        raise ConfigError("expected the URI of a store").about(
            Setting("tracking.uri", repr(uri or "")),
            remedy="set a store, such as sqlite:///mlflow.db, or set tracking=off",
        )
    reason = _reason(uri)
    if reason is not None:
        raise ConfigError(f"this store cannot be used: {reason}.").about(
            Setting("tracking.uri", masked_uri(uri)),
            remedy="Use a writable store, such as sqlite:///mlflow.db, or set tracking=off",
        )
    database = sqlite_path(uri)
    if database is not None and _is_deleted(database, experiment):
        raise ConfigError("this experiment was deleted in MLflow").about(
            Setting("tracking.experiment", experiment),
            remedy="choose another name, or restore it with `mlflow experiments restore`",
        )


def absolute_uri(uri: str) -> str:
    """Makes the path in a SQLite URI absolute, since a journal may be sent from another folder."""
    database = sqlite_path(uri)
    return uri if database is None else sqlite_uri(database, uri.partition("?")[2])


def _reason(uri: str) -> str | None:
    scheme, separator, rest = uri.partition(":")
    if not separator and uri != "databricks":
        return "it has no scheme. MLflow stores runs in databases and on servers, and no longer in folders"
    scheme = scheme.lower().partition("+")[0]
    if scheme not in SCHEMES and scheme not in _schemes_of_plugins():
        return f"expected one of the schemes {', '.join(f'{one}:' for one in SCHEMES)}, got {scheme}:"
    if scheme in ("http", "https") and not rest.strip("/"):
        return "it contains no host"
    return _reason_against_database(uri)


def _schemes_of_plugins() -> set[str]:
    return {one.name for one in entry_points(group="mlflow.tracking_store")}


def _reason_against_database(uri: str) -> str | None:
    """Returns why a SQLite database cannot be used, or None if it can, or if `uri` names no SQLite database."""
    if is_in_memory(uri):
        return "this database is in memory, so nothing would be kept"
    if (meant := corrected_sqlite(uri)) is not None:  # a URI from the environment is not checked earlier
        return f"expected a path after three slashes: {meant}"
    database = sqlite_path(uri)
    return None if database is None else _reason_against_file(database)


def _reason_against_file(database: Path) -> str | None:
    if not database.parent.is_dir():
        return f"the folder {database.parent} does not exist"
    reason = unwritable(str(database.parent))
    if reason is not None:
        return reason
    try:
        os.stat(database)
    except FileNotFoundError:
        return None
    except OSError as error:  # for example, a name that is too long or a symlink loop
        return error.strerror
    if not os.access(database, os.R_OK | os.W_OK):
        return "it is not both readable and writable"
    if database.is_dir():
        return "it is a folder"
    kind = kind_of(database)
    if kind is not None:
        return f"it is {kind}"
    with open(database, "rb") as file:
        start = file.read(len(_MAGIC))
    return None if start in (b"", _MAGIC) else "the file is not a database"


def _is_deleted(database: Path, experiment: str) -> bool:
    """Returns whether the experiment is marked as deleted. Returns False if the database cannot be read; MLflow reports
    that problem later."""
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            query = "SELECT lifecycle_stage FROM experiments WHERE name = ?"
            row = connection.execute(query, (experiment,)).fetchone()
    except sqlite3.Error:
        return False
    return row is not None and row[0] == "deleted"
