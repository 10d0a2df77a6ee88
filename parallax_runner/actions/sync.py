"""`action=sync`: sends the records of a run to its tracker's store again. Runs without a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.action import Action
from parallax_runner.config.explain import refusal
from parallax_runner.errors import ConfigError, Setting

if TYPE_CHECKING:
    from parallax_runner.config.command_without_job import CommandWithoutJob
    from parallax_runner.config.origins import Origins
    from parallax_runner.config.schema import RunConfig


class Sync(Action):
    """Sends what is in the folder of a run or a sweep."""

    runs_a_job: ClassVar[bool] = False
    purpose: ClassVar[str] = "train"

    def check(self, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError if nothing tells which run to send."""
        if "run_dir" not in origins.given():
            needed = "this action needs the folder of a run or a sweep; add run_dir=PATH"
            raise refusal("action", origins, needed, value=config.action)

    def begin(self, config: RunConfig) -> None:
        """Raises ConfigError: this action is a command of its own."""
        raise ConfigError("this action runs no job").about(
            Setting("action", "sync"), remedy="use this action alone, as in action=sync run_dir=runs/first"
        )

    def run_command(self, command: CommandWithoutJob) -> None:
        """Sends the records in the folder of the command. Raises TrackingError if they cannot be sent."""
        from parallax_runner.track.tracker import find_tracker

        find_tracker(command.tracker).sync(command.folder, command.given)
