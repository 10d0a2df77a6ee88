"""How a run is handed to a scheduler, such as Slurm, which then starts the driver elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from parallax_runner.config.schema import RunConfig
from parallax_runner.plan.plan import Plan


class Submission(ABC):
    """Writes the job of one run into its folder, and hands the job to the scheduler."""

    def folder_in_job(self, config: RunConfig, run_dir: Path) -> Path:
        """Returns the run's folder, as the driver in the job sees it."""
        return run_dir

    @abstractmethod
    def write(self, config: RunConfig, plan: Plan, run_dir: Path, command: str | None) -> Path:
        """Writes the job, whose driver runs `command`, into the folder, and returns the path of the file. The driver
        hands the job over when it has unlocked the folder.

        Raises LaunchError if the job cannot be written, or if `command` is None because nobody typed a command.
        """

    @abstractmethod
    def hand_over(self, config: RunConfig, path: Path) -> None:
        """Submits the job that `write` has written if `cluster.submit` is set, and follows it if `cluster.follow` is
        set.

        Raises LaunchError if the scheduler refuses the job, and SystemExit with the job's exit status if a job that is
        followed has failed. Raises KeyboardInterrupt on Ctrl-C, but the job continues.
        """
