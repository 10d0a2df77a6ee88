"""Handles parameters that change when a run is resumed. MLflow keeps the first value, so a tag records the later
ones."""

import json
from collections.abc import Mapping


def fitting_json(changed: Mapping[str, str], max_chars: int) -> str:
    """Formats the changed parameters as JSON, with values shortened to fit into `max_chars`; `{}` if that fails."""
    for length in (500, 50, 5, 0):
        text = json.dumps({key: value[:length] for key, value in changed.items()})
        if len(text) <= max_chars:
            return text
    return "{}"


def parse_changed(tag: str | None) -> dict[str, str]:
    """Parses what `fitting_json` wrote; empty if there is no tag or it is not valid JSON."""
    try:
        changed = json.loads(tag or "{}")
    except ValueError:  # edited by hand
        return {}
    return changed if isinstance(changed, dict) else {}
