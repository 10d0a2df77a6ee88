"""Hides passwords and tokens in output. Covers credentials in URIs and the values of secret environment variables.

Imports nothing from the project.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

MASK = "***"
# Suffixes of the environment variables that contain secrets for trackers or for a rendezvous.
_SECRET_VARIABLES = (
    *("_TRACKING_PASSWORD", "_TRACKING_TOKEN", "_API_KEY", "_API_TOKEN"),
    *("PARALLAX_RENDEZVOUS_SECRET", "PARALLAX_REDIS_PASSWORD"),
)
_URI_VARIABLES = "_TRACKING_URI"
# Secrets shorter than this are not masked, because masking them would hide parts of ordinary words.
_MIN_SECRET_CHARS = 6
# These patterns are for URIs in text, which end at white space, a quote or a bracket. In http(s) URIs, a user name
# without a password can be a token, and a slash ends the part with the password. In other URIs, a colon followed by a
# number and a slash introduces a port and not a password.
WEB = re.compile(r"(\bhttps?://)[^\s/?#\"<>]*@", re.IGNORECASE)
_OTHERS = re.compile(r"(\b(?!https?:)[A-Za-z][\w+.-]*://[^\s:/?#@\"<>]*):(?!\d{1,5}/)[^\s\"<>]*@", re.IGNORECASE)
_SECRET_WORD = r"(?:passw(?:or)?d|pwd|passphrase|token(?![a-z])|secret|credential|api_?key|access_?key)"
_SECRET_NAME = re.compile(_SECRET_WORD, re.IGNORECASE)
_SECRET_KEY = rf"([?&;][\w.-]*{_SECRET_WORD}[\w.-]*=)"
_QUERY = re.compile(_SECRET_KEY + r"[^\s&;#'\"<>]+", re.IGNORECASE)
# These patterns are for strings that are a single URI. SQLAlchemy allows nearly every character in a password, and an @
# in a user name.
_WHOLE_WEB = re.compile(r"\A(https?://)([^/?#]*)@", re.IGNORECASE)
_WHOLE_OTHER = re.compile(r"\A((?!https?:)[A-Za-z][\w+.-]*://[^:/]*:)(.*)@", re.IGNORECASE | re.DOTALL)
_WHOLE_QUERY = re.compile(_SECRET_KEY + r"([^&]+)", re.IGNORECASE)


def without_password(text: str) -> str:
    """Replaces each password and token in URIs in the text with `***`."""
    if "=" in text or "://" in text:
        text = WEB.sub(rf"\g<1>{MASK}@", text)
        text = _OTHERS.sub(rf"\g<1>:{MASK}@", text)
        text = _QUERY.sub(rf"\g<1>{MASK}", text)
    return text


def masked_uri(uri: str) -> str:
    """Replaces each password and token with `***` in a string that is a single URI. Passwords and tokens can contain
    any characters."""
    uri = _WHOLE_WEB.sub(rf"\g<1>{MASK}@", uri)
    uri = _WHOLE_OTHER.sub(rf"\g<1>{MASK}@", uri)
    return _WHOLE_QUERY.sub(rf"\g<1>{MASK}", uri)


def masked(text: str) -> str:
    """Replaces each password and token in the text with `***`, including the values of secret environment variables.
    Use this function for messages and not for names and paths, which may contain such a value by chance."""
    for secret in _secrets_of_environment():
        text = text.replace(secret, MASK)
    return without_password(text)


def masked_values(value: Any) -> Any:
    """Masks all strings in a nested value, but not the keys."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {key: masked_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(inner) for inner in value]
    return value


def is_secret_variable(name: str) -> bool:
    """Returns whether the name of an environment variable says that its value is a secret."""
    return _SECRET_NAME.search(name) is not None


def has_credentials(uri: str) -> bool:
    """Returns whether a URI contains a password or a token."""
    return masked_uri(uri) != uri


class MaskingFormatter(logging.Formatter):
    """Formats a log record, including its traceback, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats and masks one record."""
        return masked(super().format(record))


def _secrets_of_environment() -> list[str]:
    """Returns the secrets, longest first, since one secret may contain another."""
    found: set[str] = set()
    for name in os.environ:
        if name.endswith(_SECRET_VARIABLES):
            found.add(os.environ[name])
        elif name.endswith(_URI_VARIABLES):
            uri = os.environ[name]
            # A secret that also occurs elsewhere in the address, as in mysql://me:me@host, is treated as a common word
            # and skipped.
            found |= {secret for secret in _secrets_of(uri) if secret not in masked_uri(uri)}
    return sorted((secret for secret in found if len(secret) >= _MIN_SECRET_CHARS), key=len, reverse=True)


def _secrets_of(uri: str) -> Iterator[str]:
    """Yields each password and token in a URI, both as written and URL-decoded."""
    web, other = _WHOLE_WEB.match(uri), _WHOLE_OTHER.match(uri)
    written = [match[2] for match in _WHOLE_QUERY.finditer(uri)]
    if web:
        user, colon, password = web[2].partition(":")
        written.append(password if colon else user)
    elif other:
        written.append(other[2])
    for secret in written:
        yield secret
        yield unquote(secret)
