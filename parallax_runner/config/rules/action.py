"""The name of the action, and what the action itself needs."""

from parallax_runner.config.actions import KEY, action_named, action_of, names_of_actions
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.suggestions import nearest


def check_action_name(name: str, origins: Origins) -> None:
    """Raises ConfigError if there is no such action."""
    try:
        action_named(name)
    except LookupError as error:
        near = None if "." in name else nearest(name, names_of_actions())
        hint = None if near is None else f"{KEY}={near}"
        raise refusal(KEY, origins, str(error), value=name, hint=hint) from error


def check_action(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a setting contradicts the action."""
    action_of(config).check(config, origins)
