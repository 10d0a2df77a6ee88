"""Parameters that change when a run is resumed: MLflow keeps the first value, so the later ones stand in a tag."""

import json
from collections.abc import Mapping


def fitting_json(changed: Mapping[str, str], max_chars: int) -> str:
    """What changed, shortened until it has `max_chars`."""
    for length in (500, 50, 5, 0):
        text = json.dumps({key: value[:length] for key, value in changed.items()})
        if len(text) <= max_chars:
            return text
    return "{}"


def parse_changed(tag: str | None) -> dict[str, str]:
    """What `fitting_json` has written, empty without it."""
    try:
        changed = json.loads(tag or "{}")
    except ValueError:  # edited by hand
        return {}
    return changed if isinstance(changed, dict) else {}
