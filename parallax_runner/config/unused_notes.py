"""Notes on the keys that the user sets and that the configuration does not use (config/unused_keys.py)."""

from __future__ import annotations

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.unused_keys import KEPT, RULES


def unused(config: RunConfig, origins: Origins) -> dict[str, str]:
    """Returns the keys that the command line or a file of another group sets without an effect, each with a sentence
    that states this."""
    notes: dict[str, str] = {}
    for rule in RULES:
        reason = rule.reason(config)
        for key in [] if reason is None else origins.wished(rule.key):
            origin = origins.of(key)
            if origin is not None and (rule.value is KEPT or origin.value != rule.value):
                notes.setdefault(key, str(refusal(key, origins, f"this key has no effect, because {reason}")))
    return notes
