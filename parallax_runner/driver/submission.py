"""Hands a planned run to a scheduler, if the launcher of the run submits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallax_runner.config.actions import action_of
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.resume_command import resume_command
from parallax_runner.config.schema import RunConfig
from parallax_runner.launch.launchers.submission import Submission

if TYPE_CHECKING:
    from parallax_runner.driver.planned_run import PlannedRun
    from parallax_runner.driver.request import Request


@dataclass(frozen=True)
class CheckedSubmission:
    """A run that a scheduler starts, which has not refused it so far. `command` is that of its driver in the job."""

    submission: Submission
    command: str

    def write(self, request: Request, planned: PlannedRun) -> None:
        """Writes the run's job. The driver submits it when it has unlocked the run's folder."""
        request.state.job_script = self.submission.write(planned.config, planned.plan, request.run_dir, self.command)


def submission_of(config: RunConfig) -> Submission | None:
    """Returns how this run is submitted, or None if the driver starts its processes itself."""
    if not action_of(config).runs_steps:
        return None
    found: Submission | None = declared_by(config.cluster.launcher).submission(config)
    return found


def checked_submission(request: Request) -> CheckedSubmission | None:
    """Returns how this run is submitted, before its plan is made, or None if the driver starts its processes itself.
    Raises LaunchError if the run cannot be submitted."""
    config, run_dir = request.config, request.run_dir
    submission = submission_of(config)
    if submission is None:
        return None
    folder = submission.folder_in_job(config, run_dir)
    known = resume_command(folder, has_own_checkpoint=False, resume=config.ckpt.resume)
    command = submission.expect_command(config, known)
    submission.check(config, run_dir)
    return CheckedSubmission(submission, command)


def hand_over(request: Request) -> None:
    """Submits the job that was written for this run, if there is one. Raises LaunchError if it is refused, and
    SystemExit with the exit status of a job that was followed and has failed."""
    submission, path = submission_of(request.config), request.state.job_script
    if submission is not None and path is not None:
        submission.hand_over(request.config, path)
