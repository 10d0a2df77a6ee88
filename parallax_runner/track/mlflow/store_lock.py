"""Lets only one process at a time open a SQLite store. If four processes create the store's tables at the same time,
three of them crash."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from parallax_runner.files.locks import locked


def sqlite_path(uri: str) -> Path | None:
    """Returns the absolute path of the database in `sqlite:///…`, or None for other stores and in-memory databases.

    Parses the URI in the same way as SQLAlchemy: options begin at a question mark, and a question mark in the path is
    written as %3F.
    """
    prefix = "sqlite:///"
    path = uri.removeprefix(prefix).partition("?")[0]
    if not uri.startswith(prefix) or not path or path.startswith(":memory:"):
        return None
    return Path(unquote(path)).absolute()


def sqlite_uri(database: Path, options: str = "") -> str:
    """Returns the `sqlite:///` URI of a database path, with special characters escaped."""
    path = str(database).replace("%", "%25").replace("?", "%3F")
    return f"sqlite:///{path}{'?' if options else ''}{options}"


@contextmanager
def store_lock(database: Path | None) -> Iterator[None]:
    """Holds the lock file next to `database`. Does nothing if `database` is None. Raises OSError if the lock file
    cannot be written."""
    if database is None:
        yield
        return
    with locked(database.with_name(f".{database.name}.lock")):
        yield
