"""Checks that `comm.name` and `partition.name` match the selected choices of their groups."""

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig


def check_choice_names(_: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if `comm.name` or `partition.name` differs from the selected choice of its group.

    If a configuration sets its own `comm.routes`, `comm.name` can be any name."""
    has_own_routes = origins.is_set("comm.routes") or bool(origins.given("comm.routes"))
    for group in ("comm", "partition"):
        if group != "comm" or not has_own_routes:
            check_choice_name(group, origins)


def check_choice_name(group: str, origins: Origins) -> None:
    """Raises ConfigError if the group's `name` differs from the name in the file of the selected choice."""
    key = f"{group}.name"
    origin = origins.of(key)
    named = [file.values[key] for file in origins.files if file.group == group and key in file.values]
    if origin is not None and named and origin.value != named[-1]:
        hint = f"{group}={origin.value}"
        raise refusal(key, origins, f"the choice {group}={named[-1]} sets this key", hint=hint)
