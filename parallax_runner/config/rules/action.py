"""What the actions `simulate` and `sync` need."""

import os

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.targets import SCRIPT
from parallax_runner.files.access import unreadable


def check_simulate(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a simulation has no measurement, or one that cannot be read."""
    if config.action != "simulate":
        return
    profile = config.simulate.profile
    if profile is None:
        if config.model["_target_"] == SCRIPT:
            raise refusal("action", origins, "a script feeds its own data; add simulate.profile=PATH", value="simulate")
        return
    reason = unreadable(os.path.expanduser(profile))
    if reason is not None:
        raise refusal("simulate.profile", origins, reason, value=profile)


def check_sync(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if nothing tells which run to send."""
    if config.action == "sync" and "run_dir" not in origins.given():
        needed = "this action needs the folder of a run or a sweep; add run_dir=PATH"
        raise refusal("action", origins, needed, value="sync")
