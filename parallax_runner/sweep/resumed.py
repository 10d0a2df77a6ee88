"""Summarizes the progress of an earlier start of a sweep in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallax_runner.checkpoints.checkpoint_files import list_checkpoints, step_of
from parallax_runner.checkpoints.publish import tidy
from parallax_runner.config.schema import RunConfig
from parallax_runner.sweep.ledger import Account, Job


def far(account: Account, planned: Sequence[tuple[Job, RunConfig]]) -> str | None:
    """Returns a line such as `1 finished, 1 continues at step 14, 2 to do`, or None if no job has been started before.

    If `planned` is empty, a sweeper such as Optuna chooses the jobs while the sweep runs. Such a sweeper never chooses
    an unfinished job again.
    """
    if not planned and account.standings:
        finished = sum(one.status == "finished" for one in account.standings.values())
        return (
            f"{finished} finished, {len(account.standings) - finished} not finished, and the sweeper chooses new jobs"
        )
    started = [(job, config) for job, config in planned if job.name in account.standings]
    if not started:
        return None
    unfinished = [config for job, config in started if not account.has_finished(job)]
    steps = _steps_in(unfinished)
    parts = [f"{len(started) - len(unfinished)} finished"]
    if steps:
        parts.append(_continuing(sorted(steps)))
    parts.append(f"{len(planned) - len(started) + len(unfinished) - len(steps)} to do")
    return ", ".join(parts)


def _steps_in(configs: Sequence[RunConfig]) -> list[int]:
    """Returns the steps from which jobs continue. Jobs that begin at the first step are omitted."""
    steps = [_step_in(config) for config in configs]
    return [step for step in steps if step is not None]


def _continuing(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"1 continues at step {steps[0]}"
    return f"{len(steps)} continue at steps {', '.join(map(str, steps[:-1]))} and {steps[-1]}"


def _step_in(config: RunConfig) -> int | None:
    """Returns the step of the checkpoint from which a job continues, or None if the job has no checkpoint or
    `ckpt.resume` is not `auto`."""
    if not config.ckpt.enabled or config.ckpt.resume != "auto":
        return None
    folder = Path(config.ckpt.folder)
    try:
        tidy(folder)  # moves a complete checkpoint into place if a job was killed just before the move
        newest = list_checkpoints(folder)[-1:]
        return step_of(newest[0]) if newest else None
    except (OSError, ValueError):  # the job itself reports the problem with its folder
        return None
