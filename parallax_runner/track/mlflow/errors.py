"""Reads the errors of MLflow, its drivers and the network: which of them may pass, and how to say them in one line."""

from __future__ import annotations

import re

from parallax_runner.files.credentials import masked

MAX_MESSAGE_CHARS = 500
# What asking again does not change; everything else may be a server that is down, restarting or overloaded.
PERMANENT = {
    *("BAD_REQUEST", "CUSTOMER_UNAUTHORIZED", "FEATURE_DISABLED", "INVALID_PARAMETER_VALUE", "NOT_IMPLEMENTED"),
    *("PERMISSION_DENIED", "RESOURCE_DOES_NOT_EXIST", "UNAUTHENTICATED"),
}


def is_permanent(error: Exception) -> bool:
    """Whether asking again would change nothing."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error.error_code in PERMANENT
    # A database driver that is not installed, an address that is none. Network and file errors are OSErrors.
    return isinstance(error, ImportError | TypeError) or (
        isinstance(error, ValueError) and not isinstance(error, OSError)
    )


def is_of_what_is_gone(error: Exception) -> bool:
    """Whether MLflow itself says that a run or an experiment is not there; a wrong address is told otherwise."""
    return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"


def one_line(error: Exception) -> str:
    """The first line of what an error says, of a network error only what is wrong with the network; no passwords."""
    text = masked(str(error).strip())
    network = re.search(r"\[Errno -?\d+\] ([^'\"()]+)", text) if "HTTPConnection" in text else None
    if network is not None:
        return network[1]
    if "Read timed out" in text or "ConnectTimeout" in text:
        return "no answer in time"
    causes = re.findall(r"'([^']+)'", text.partition("Caused by")[2])
    if causes:
        return str(causes[-1])
    return text.splitlines()[0][:MAX_MESSAGE_CHARS] if text else type(error).__name__
