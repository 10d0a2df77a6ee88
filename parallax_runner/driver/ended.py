"""The exception with which the driver leaves a run that has failed or was stopped."""

from __future__ import annotations

from pathlib import Path

from parallax_runner.driver.run_summary import RunSummary


class RunEnded(SystemExit):
    """A run has failed or was stopped, and the terminal already says so. Unless it is caught, this process ends with
    the exit status of the run.

    `summary` describes the run, and `run_dir` is its folder.
    """

    def __init__(self, exit_status: int, summary: RunSummary, run_dir: Path) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status
        self.summary = summary
        self.run_dir = run_dir
