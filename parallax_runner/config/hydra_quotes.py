"""Quotes values for overrides in Hydra's grammar. Imports nothing from the project."""

import re

# Words that Hydra does not read as strings.
_NO_STRINGS = ("null", "true", "false", "nan", "inf")


def quoted(path: str) -> str:
    """Returns a path as a value in Hydra's grammar. The path must not contain «${», which starts an interpolation."""
    is_plain = re.fullmatch(r"[\w/.+-]+", path, flags=re.ASCII) and (
        "/" in path or (re.match(r"[A-Za-z_]", path) and path.lower() not in _NO_STRINGS)
    )
    return path if is_plain else in_quotes(path)


def in_quotes(text: str) -> str:
    """Returns a quoted string in Hydra's grammar, where a backslash is literal except before a quote."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text) + "'"
