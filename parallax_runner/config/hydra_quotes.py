"""Quotes values for overrides in Hydra's grammar. Imports nothing of the project."""

import re

# Hydra reads these as something else than a string, as it does numbers.
_NO_STRINGS = ("null", "true", "false", "nan", "inf")


def quoted(path: str) -> str:
    """A path as a value in Hydra's grammar. No path with «${» can be given: that refers to another key."""
    is_plain = re.fullmatch(r"[\w/.+-]+", path, flags=re.ASCII) and (
        "/" in path or (re.match(r"[A-Za-z_]", path) and path.lower() not in _NO_STRINGS)
    )
    return path if is_plain else in_quotes(path)


def in_quotes(text: str) -> str:
    """A string in Hydra's grammar. A backslash means itself there but before a quote."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text) + "'"
