"""`comm.name` and `partition.name` are what the group's choice says; another name would contradict its other values."""

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins


def check_choice_names(origins: Origins) -> None:
    """Raises ConfigError where something else than the group's choice names it. Own `comm.routes` may have a name."""
    has_own_routes = origins.wishes("comm.routes") or bool(origins.given("comm.routes"))
    for group in ("comm", "partition"):
        key = f"{group}.name"
        origin = origins.of(key)
        named = [file.values[key] for file in origins.files if file.group == group and key in file.values]
        if origin is None or not named or origin.value == named[-1] or (group == "comm" and has_own_routes):
            continue
        hint = f"{group}={origin.value}"
        raise refusal(key, origins, f"the group's choice says it, and this is {group}={named[-1]}", hint=hint)
