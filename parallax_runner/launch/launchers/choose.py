"""Chooses the launcher that starts the processes of a plan."""

from parallax_runner.config.launchers import launcher_class, launcher_name
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.launchers.direct import Direct
from parallax_runner.launch.launchers.launcher import Launcher
from parallax_runner.plan.plan import Plan


def launcher_of(config: RunConfig, plan: Plan) -> Launcher:
    """Returns the configured launcher, or `Direct` for a plan with a single process, unless it may have more later.
    Raises LaunchError if the configured launcher cannot start this plan."""
    if plan.is_alone and not plan.worker_numbers:
        return Direct()
    found: type[Launcher] = launcher_class(config)
    # The configuration was validated with its own communication mode, but a calibration uses another mode.
    reason = found.unfit(config, plan.comm)
    if reason is not None:
        raise LaunchError(reason).about(Setting.of("cluster.launcher", launcher_name(config)))
    return found.from_config(config, plan)
