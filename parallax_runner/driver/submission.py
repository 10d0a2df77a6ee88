"""Hands a planned run to a scheduler, if the launcher of the run submits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallax_runner.config.actions import action_of
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.resume_command import resume_command
from parallax_runner.config.schema import RunConfig
from parallax_runner.launch.launchers.submission import Submission

if TYPE_CHECKING:
    from parallax_runner.driver.planned_run import PlannedRun
    from parallax_runner.driver.request import Request


def submission_of(config: RunConfig) -> Submission | None:
    """Returns how this run is submitted, or None if the driver starts its processes itself."""
    if not action_of(config).runs_steps:
        return None
    found: Submission | None = declared_by(config.cluster.launcher).submission(config)
    return found


def submitted(request: Request, planned: PlannedRun) -> bool:
    """Writes the run's job if this run must be submitted. Returns whether it must. The driver submits the job when it
    has unlocked the run's folder."""
    config, run_dir = planned.config, request.run_dir
    submission = submission_of(config)
    if submission is None:
        return False
    folder = submission.folder_in_job(config, run_dir)
    command = resume_command(folder, has_own_checkpoint=False, resume=config.ckpt.resume)
    request.state.job_script = submission.write(config, planned.plan, run_dir, command)
    return True


def hand_over(request: Request) -> None:
    """Submits the job that `submitted` has written, if there is one. Raises LaunchError if it is refused, and
    SystemExit with the exit status of a job that was followed and has failed."""
    submission, path = submission_of(request.config), request.state.job_script
    if submission is not None and path is not None:
        submission.hand_over(request.config, path)
