"""Turns a nested configuration into flat keys and short values that tracking stores accept."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_KEY_CHARS = 250
MAX_VALUE_CHARS = 6000
_FORBIDDEN = re.compile(r"[^/\w.\- :]")


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Turns `{"comm": {"name": "ps"}}` into `{"comm.name": "ps"}`, with valid keys and with values truncated to 6000
    characters.

    No value is omitted: an empty group becomes `{}`, a list becomes JSON, and true, false and null are written as on
    the command line. If several keys become identical, later keys get the suffixes `_2`, `_3` and so on.
    """
    flat: dict[str, str] = {}
    for key, value in _leaves(config, ""):
        flat[_unused(valid_key(key), flat)] = value[:MAX_VALUE_CHARS]
    return flat


def valid_key(key: str) -> str:
    """Returns `key` truncated to 250 characters, with each character that a store may refuse replaced by `_`. If a key
    is not a normalized relative path, such as `../x`, slashes are also replaced and `_` is prepended."""
    key = _FORBIDDEN.sub("_", key)[:MAX_KEY_CHARS]
    if posixpath.normpath(key) != key or key.startswith((".", "/")):
        key = "_" + key.replace("/", "_")
    return key[:MAX_KEY_CHARS]


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and (value or not key):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, str):
        yield key, value
    else:
        yield key, json.dumps(value, default=str)


def _unused(key: str, taken: Mapping[str, str]) -> str:
    candidate, number = key, 1
    while candidate in taken:
        number += 1
        suffix = f"_{number}"
        candidate = key[: MAX_KEY_CHARS - len(suffix)] + suffix
    return candidate
