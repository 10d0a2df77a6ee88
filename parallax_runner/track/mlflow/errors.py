"""Classifies errors from MLflow, database drivers and the network as temporary or permanent, and formats each error as
one line."""

from __future__ import annotations

import re

from parallax_runner.files.credentials import masked

MAX_MESSAGE_CHARS = 500
# Codes of errors that a retry cannot resolve. Any other error may come from a server that is down, restarting or
# overloaded.
PERMANENT = {
    *("BAD_REQUEST", "CUSTOMER_UNAUTHORIZED", "FEATURE_DISABLED", "INVALID_PARAMETER_VALUE", "NOT_IMPLEMENTED"),
    *("PERMISSION_DENIED", "RESOURCE_DOES_NOT_EXIST", "UNAUTHENTICATED"),
}
# Texts of errors of databases that a retry cannot resolve. MLflow and SQLAlchemy report them with the same codes and
# types as a server that is down.
PERMANENT_TEXTS = (
    "file is not a database",
    "database disk image is malformed",
    "attempt to write a readonly database",
    "out-of-date database schema",  # also if the schema is that of a newer MLflow
    "Can't locate revision",
)
# Of these errors, the schema's are those of another version of MLflow.
OF_ANOTHER_VERSION = PERMANENT_TEXTS[-2:]


def is_permanent(error: Exception) -> bool:
    """Returns whether a retry cannot succeed."""
    from mlflow.exceptions import MlflowException

    if any(text in str(error) for text in PERMANENT_TEXTS):
        return True
    if isinstance(error, MlflowException):
        return error.error_code in PERMANENT
    # These are errors such as a missing database driver or an invalid URI. Network and file errors are OSErrors.
    return isinstance(error, ImportError | TypeError) or (
        isinstance(error, ValueError) and not isinstance(error, OSError)
    )


def is_of_what_is_gone(error: Exception) -> bool:
    """Returns whether MLflow reports that a run or experiment does not exist. A wrong URI causes other errors."""
    return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"


def one_line(error: Exception) -> str:
    """Returns the first line of an error's message, or only the cause for a network error. Passwords are masked."""
    text = masked(str(error).strip())
    if any(one in text for one in OF_ANOTHER_VERSION):
        return f"{text.splitlines()[0][:MAX_MESSAGE_CHARS]} (another version of MLflow wrote this database)"
    network = re.search(r"\[Errno -?\d+\] ([^'\"()]+)", text) if "HTTPConnection" in text else None
    if network is not None:
        return network[1]
    if "Read timed out" in text or "ConnectTimeout" in text:
        return "no answer before the timeout"
    causes = re.findall(r"'([^']+)'", text.partition("Caused by")[2])
    if causes:
        return str(causes[-1])
    return text.splitlines()[0][:MAX_MESSAGE_CHARS] if text else type(error).__name__
