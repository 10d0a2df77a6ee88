"""Hides passwords and tokens in whatever is written: URIs in any text, and what the environment has for trackers.

Imports nothing of the project.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

MASK = "***"
# How the environment's variables end that trackers read, by their usual names, and those of a rendezvous.
_SECRET_VARIABLES = (
    *("_TRACKING_PASSWORD", "_TRACKING_TOKEN", "_API_KEY", "_API_TOKEN"),
    *("PARALLAX_RENDEZVOUS_SECRET", "PARALLAX_REDIS_PASSWORD"),
)
_URI_VARIABLES = "_TRACKING_URI"
# A shorter one would hide parts of ordinary words.
_MIN_SECRET_CHARS = 6
# In text, where white space, a quote or a bracket ends a URI. On the web the user's name alone may be a token, and a
# slash ends the part with the password. Elsewhere a number and a slash after the host are a port and no password.
WEB = re.compile(r"(\bhttps?://)[^\s/?#\"<>]*@", re.IGNORECASE)
_OTHERS = re.compile(r"(\b(?!https?:)[A-Za-z][\w+.-]*://[^\s:/?#@\"<>]*):(?!\d{1,5}/)[^\s\"<>]*@", re.IGNORECASE)
_SECRET_KEY = (
    r"([?&;][\w.-]*(?:passw(?:or)?d|pwd|passphrase|token(?![a-z])|secret|credential|api_?key|access_?key)[\w.-]*=)"
)
_QUERY = re.compile(_SECRET_KEY + r"[^\s&;#'\"<>]+", re.IGNORECASE)
# In a string that is one URI and nothing else. SQLAlchemy takes nearly every character as part of a password, and an @
# as part of a user's name.
_WHOLE_WEB = re.compile(r"\A(https?://)([^/?#]*)@", re.IGNORECASE)
_WHOLE_OTHER = re.compile(r"\A((?!https?:)[A-Za-z][\w+.-]*://[^:/]*:)(.*)@", re.IGNORECASE | re.DOTALL)
_WHOLE_QUERY = re.compile(_SECRET_KEY + r"([^&]+)", re.IGNORECASE)


def without_password(text: str) -> str:
    """The text with `***` in place of each password and token in a URI."""
    if "=" in text or "://" in text:
        text = WEB.sub(rf"\g<1>{MASK}@", text)
        text = _OTHERS.sub(rf"\g<1>:{MASK}@", text)
        text = _QUERY.sub(rf"\g<1>{MASK}", text)
    return text


def masked_uri(uri: str) -> str:
    """A string that is one URI, with `***` in place of each password and token, whatever characters these have."""
    uri = _WHOLE_WEB.sub(rf"\g<1>{MASK}@", uri)
    uri = _WHOLE_OTHER.sub(rf"\g<1>{MASK}@", uri)
    return _WHOLE_QUERY.sub(rf"\g<1>{MASK}", uri)


def masked(text: str) -> str:
    """The text with `***` in place of each password and token, those of the environment included: for people, not for
    names and paths, in which such a word may stand by chance."""
    for secret in _secrets_of_environment():
        text = text.replace(secret, MASK)
    return without_password(text)


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
    return masked_uri(uri) != uri


class MaskingFormatter(logging.Formatter):
    """Formats a record, its traceback included, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        """One entry of a log."""
        return masked(super().format(record))


def _secrets_of_environment() -> list[str]:
    """Longest first: one may be the beginning of another."""
    found: set[str] = set()
    for name in os.environ:
        if name.endswith(_SECRET_VARIABLES):
            found.add(os.environ[name])
        elif name.endswith(_URI_VARIABLES):
            uri = os.environ[name]
            # What the address shows anyway, as in mysql://me:me@host, is a common word.
            found |= {secret for secret in _secrets_of(uri) if secret not in masked_uri(uri)}
    return sorted((secret for secret in found if len(secret) >= _MIN_SECRET_CHARS), key=len, reverse=True)


def _secrets_of(uri: str) -> Iterator[str]:
    """The passwords and tokens of a URI, as they stand there and as they are sent."""
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
