"""Handles parameters that change when a run is resumed. MLflow keeps only the first value of a parameter, so a tag
records later values."""

import json
from collections.abc import Mapping


def fitting_json(changed: Mapping[str, str], max_chars: int) -> str:
    """Formats the changed parameters as JSON and shortens their values so that the text has at most `max_chars`
    characters. Returns `{}` if the result is still too long."""
    for length in (500, 50, 5, 0):
        text = json.dumps({key: value[:length] for key, value in changed.items()})
        if len(text) <= max_chars:
            return text
    return "{}"


def parse_changed(tag: str | None) -> dict[str, str]:
    """Parses a tag that `fitting_json` wrote. Returns an empty dict if there is no tag or the tag is not valid JSON."""
    try:
        changed = json.loads(tag or "{}")
    except ValueError:  # a user edited the tag
        return {}
    return changed if isinstance(changed, dict) else {}
