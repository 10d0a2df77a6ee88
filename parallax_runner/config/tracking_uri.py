"""Checks the URI of a tracking store: the URI must not contain a password, and an SQLite URI needs three slashes."""

import re

from parallax_runner.files.credentials import WEB

TRACKING_URI = "MLFLOW_TRACKING_URI"
# If an @ follows a port, SQLAlchemy reads the port as the start of a password. This happens even if the @ is in the
# options.
_PORT_OR_PASSWORD = re.compile(r"\A(?!https?:)[A-Za-z][\w+.-]*://[^:/]*:\d{1,5}/.*@", re.IGNORECASE | re.DOTALL)

_SQLITE = re.compile(r"\A(sqlite(?:\+\w+)?):(?!///)(?!//(?:\?|\Z))(/*)(.*)", re.DOTALL)


def corrected_sqlite(uri: str) -> str | None:
    """Returns the corrected URI if slashes are missing, otherwise None.

    SQLAlchemy reads the text after two slashes as a host, and an empty path as an in-memory database.
    """
    match = _SQLITE.match(uri)
    if match is None:
        return None
    dialect, slashes, path = match.groups()
    return f"{dialect}:///{'/' if len(slashes) == 1 else ''}{path}"


def is_in_memory(uri: str) -> bool:
    """Returns whether an SQLite URI names an in-memory database, which is lost when the process exits."""
    address, _, options = uri.partition("?")
    match = re.fullmatch(r"sqlite(?:\+\w+)?:/{0,3}(.*)", address, re.DOTALL)
    return match is not None and (match[1] in ("", ":memory:", "file::memory:") or "mode=memory" in options)


def password_remedy(uri: str) -> str:
    """Returns a phrase that states why a URI with a password is rejected, and where to put the password."""
    reason = "a password or token in the URI would be written to files and to MLflow"
    if WEB.match(uri):
        return (
            f"{reason}; remove it, and set the environment variables MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    if _PORT_OR_PASSWORD.match(uri):
        reason = (
            "SQLAlchemy reads the text between the first colon and the last @ after :// as a password; if this text "
            f"begins with a port, write %40 for each @ in the URI; {reason}"
        )
    return f"{reason}; set tracking.uri=null, and set the environment variable {TRACKING_URI} to the whole URI"
