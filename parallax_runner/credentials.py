"""Hides passwords and tokens in whatever is written: URIs in any text, and what the environment has for MLflow.

Imports nothing of the project.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
TRACKING_URI = "MLFLOW_TRACKING_URI"
_SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
# A shorter one would hide parts of ordinary words.
_MIN_SECRET_CHARS = 6
# On the web the user's name alone may be a token, and a slash ends the part with the password.
_WEB = re.compile(r"(\bhttps?://)[^\s/?#\"<>]*@", re.IGNORECASE)
_OTHERS = re.compile(r"(\b(?!https?:)[A-Za-z][\w+.-]*://[^\s:/?#@\"<>]*):[^\s\"<>]*@", re.IGNORECASE)
_QUERY = re.compile(
    r"([?&;][\w.-]*(?:passw(?:or)?d|pwd|passphrase|token|secret|credential|api_?key|access_?key)[\w.-]*=)"
    r"[^\s&;#'\"<>]+",
    re.IGNORECASE,
)


def without_password(text: str) -> str:
    """The text with `***` in place of each password and token in a URI."""
    if "=" in text or "://" in text:
        text = _WEB.sub(rf"\g<1>{MASK}@", text)
        text = _OTHERS.sub(rf"\g<1>:{MASK}@", text)
        text = _QUERY.sub(rf"\g<1>{MASK}", text)
    return text


def masked(text: str) -> str:
    """The text with `***` in place of each password and token, those of the environment included: for people, not for
    names and paths, in which such a word may stand by chance."""
    text = without_password(text)
    for secret in _secrets_of_environment():
        text = text.replace(secret, MASK)
    return text


def masked_values(value: Any) -> Any:
    """A nested value with all its texts masked; keys stay."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {key: masked_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(inner) for inner in value]
    return value


def has_credentials(uri: str) -> bool:
    """Whether a URI has a password or a token in it."""
    return without_password(uri) != uri


def password_remedy(uri: str) -> str:
    """Why an address with a password is refused, and where the password belongs."""
    reason = "a password or token in it would be written to files and to MLflow"
    if _WEB.match(uri):
        return (
            f"{reason}: leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, in the environment"
        )
    return f"{reason}: give tracking.uri=null, and set {TRACKING_URI} in the environment to the whole address"


class MaskingFormatter(logging.Formatter):
    """Formats a record, its traceback included, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        """One entry of a log."""
        return masked(super().format(record))


def _secrets_of_environment() -> list[str]:
    found = [os.environ.get(name, "") for name in _SECRET_VARIABLES]
    return [secret for secret in found if len(secret) >= _MIN_SECRET_CHARS]
