"""The address of a tracking store in the configuration: no password may stand in it, and SQLite's has three slashes."""

import re

from parallax_runner.files.credentials import WEB

TRACKING_URI = "MLFLOW_TRACKING_URI"
# SQLAlchemy takes a port for the begin of a password where an @ follows, even one in the options.
_PORT_OR_PASSWORD = re.compile(r"\A(?!https?:)[A-Za-z][\w+.-]*://[^:/]*:\d{1,5}/.*@", re.IGNORECASE | re.DOTALL)

_SQLITE = re.compile(r"\A(sqlite(?:\+\w+)?):(?!///)(?!//(?:\?|\Z))(/*)(.*)", re.DOTALL)


def corrected_sqlite(uri: str) -> str | None:
    """The address that was meant where slashes are missing, None where none are.

    SQLAlchemy takes what stands behind two slashes for a host, and nothing behind them for a database in memory.
    """
    match = _SQLITE.match(uri)
    if match is None:
        return None
    dialect, slashes, path = match.groups()
    return f"{dialect}:///{'/' if len(slashes) == 1 else ''}{path}"


def password_remedy(uri: str) -> str:
    """Why an address with a password is refused, and where the password belongs."""
    reason = "a password or token in it would be written to files and to MLflow"
    if WEB.match(uri):
        return (
            f"{reason}: leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, in the environment"
        )
    if _PORT_OR_PASSWORD.match(uri):
        reason = (
            "SQLAlchemy reads what stands between the first colon and the last @ behind :// as a password; if that "
            f"begins with a port, write %40 for each @ in it; {reason}"
        )
    return f"{reason}: give tracking.uri=null, and set {TRACKING_URI} in the environment to the whole address"
