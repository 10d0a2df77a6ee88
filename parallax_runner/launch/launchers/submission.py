"""How a run is handed to a scheduler, such as Slurm, which then starts the driver elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.plan.plan import Plan


class Submission(ABC):
    """Writes the job of one run into its folder, and hands the job to the scheduler."""

    # What to do with a script or a sweep.
    remedy_for_scripts: ClassVar[str]

    def expect_command(self, config: RunConfig, command: str | None) -> str:
        """Returns the command of the driver in the job. Raises LaunchError for a script, for which nobody has typed a
        command (`command` is None), and for a job of a sweep."""
        if command is None or config.sweep.dir is not None:
            raise LaunchError("a script or a job of a sweep is not submitted automatically").about(
                Setting("cluster", config.cluster.launcher), remedy=self.remedy_for_scripts
            )
        return command

    def check(self, config: RunConfig, run_dir: Path) -> None:
        """Asks the scheduler what it can tell before the data is read and the plan is made. Raises LaunchError if it
        would refuse the job. The base class asks nothing."""
        return

    def folder_in_job(self, config: RunConfig, run_dir: Path) -> Path:
        """Returns the run's folder, as the driver in the job sees it."""
        return run_dir

    @abstractmethod
    def write(self, config: RunConfig, plan: Plan, run_dir: Path, command: str) -> Path:
        """Writes the job, whose driver runs `command`, into the folder, and returns the path of the file. The driver
        hands the job over when it has unlocked the folder. Raises LaunchError if the job cannot be written."""

    @abstractmethod
    def hand_over(self, config: RunConfig, path: Path) -> None:
        """Submits the job that `write` has written if `cluster.submit` is set, and follows it if `cluster.follow` is
        set.

        Raises LaunchError if the scheduler refuses the job, and SystemExit with the job's exit status if a job that is
        followed has failed. Raises KeyboardInterrupt on Ctrl-C, but the job continues.
        """
