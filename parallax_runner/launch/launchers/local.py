"""The `local` launcher: mpirun starts all workers on this machine."""

from typing import Self

from parallax_runner.config.launchers import names_other_hosts
from parallax_runner.config.schema import RunConfig
from parallax_runner.launch.mpirun.mpirun_launcher import Mpirun, options_of_user
from parallax_runner.plan.plan import Plan


class Local(Mpirun):
    """Runs all processes on this machine. None of them accepts connections from other machines."""

    has_options = False

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher with the user's mpirun options."""
        return cls(options_of_user(config))

    @classmethod
    def unfit(cls, config: RunConfig, comm: str) -> str | None:
        """If the configuration names other hosts, returns why this launcher is unsuitable. Otherwise, returns None."""
        if names_other_hosts(config):
            return "cluster.resource_info names another host; choose auto or hosts"
        return None
