"""Notes on the keys and choices that the user sets and that the configuration does not use (config/unused_keys.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from parallax_runner.config.actions import action_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.trackers import declared_by
from parallax_runner.config.unused_keys import KEPT, RULES


def unused(config: RunConfig, origins: Origins) -> dict[str, str]:
    """Returns notes on the keys and choices that the command line or a file of another group sets without effect, by
    key or group. The note on a choice also covers the keys of its group."""
    notes = _choices(config, origins)
    groups = tuple(f"{group}." for group in notes)
    for rule in RULES:
        reason = rule.reason(config)
        for key in [] if reason is None else origins.keys_set(rule.key):
            origin = origins.of(key)
            if key.startswith(groups) or origin is None:
                continue
            if rule.value is KEPT or origin.value != rule.value:
                notes.setdefault(key, str(refusal(key, origins, f"this key has no effect, because {reason}")))
    if (note := _unused_uri(config, origins)) is not None:
        notes["tracking.uri"] = note
    return notes


def _unused_uri(config: RunConfig, origins: Origins, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns a note if the environment names a store and the user has not set `tracking.uri`, whose default names
    another store."""
    tracking = config.tracking
    if not tracking.enabled or not action_of(config).trains:
        return None
    variable = declared_by(tracking.tracker).uri_variable
    given = None if variable is None else environ.get(variable)
    is_chosen = origins.keys_set("tracking.uri") or origins.chosen("tracking") is not None
    if not given or is_chosen or tracking.uri in (None, given):
        return None
    return (
        f"{variable} (environment): this variable has no effect, because tracking.uri={tracking.uri}; to use the "
        "variable, set tracking.uri=null"
    )


def _choices(config: RunConfig, origins: Origins) -> dict[str, str]:
    notes: dict[str, str] = {}
    for rule in RULES:
        reason = None if rule.group is None else rule.reason(config)
        chosen = None if rule.group is None or reason is None else origins.chosen(rule.group)
        if rule.group is not None and chosen is not None and chosen.value != rule.value:
            told = f"{rule.group}={chosen.value} ({chosen.where})"
            notes[rule.group] = f"{told}: this choice has no effect, because {reason}."
    return notes
