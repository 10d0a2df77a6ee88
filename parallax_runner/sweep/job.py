"""Runs one job. Hydra calls `run` in this process, in a joblib process or in a Slurm job.

Other processes find `run` by the name of this module, so importing the module registers the resolver that names the
job's folder.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from parallax_runner.config import job_folder
from parallax_runner.config.compose import as_typed
from parallax_runner.config.frozen import job_config, run_config
from parallax_runner.config.objective import Objective, maximizes
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import StorageError
from parallax_runner.files.plain import reason_of
from parallax_runner.launch.launchers.slurm import batch_job
from parallax_runner.launch.launchers.slurm.allocation import is_surplus_task, sweep_job_id, warning_signal
from parallax_runner.process.exit_status import INTERRUPTED, tell
from parallax_runner.process.terminal import keep_going
from parallax_runner.sweep.device import own_gpu
from parallax_runner.sweep.ledger import Job, Ledger, Standing, Status
from parallax_runner.sweep.signals import ends_job, one_of_joblibs

job_folder.register()


def run(composed: object) -> float | None:
    """Runs the job whose configuration Hydra composed, and returns its objective.

    Raises SystemExit with the exit status if a run outside a sweep failed or was stopped. In a sweep, a failed job
    returns the worst possible objective, or None; SystemExit is raised only if the sweep must end. In a Slurm job of a
    sweep, returns None, and raises SystemExit if the job failed or was stopped.
    """
    keep_going()  # this may be a joblib process
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        return _run_in_sweep(composed, hydra)
    try:
        objective = _drive(run_config(composed))
        return None if objective is None else objective.value
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        status = tell(error)
        if status:
            raise SystemExit(status) from error
        return None


def _run_in_sweep(composed: object, hydra: Any) -> float | None:
    sweep_dir = Path(hydra.sweep.dir)
    ledger = Ledger(sweep_dir)
    config = run_config(composed)
    job = Job.of(sweep_dir, config.run_dir, *as_typed(hydra))
    config = job_config(composed, sweep_dir, job.title)
    if sweep_job_id() is not None:
        _run_as_slurm_job(ledger, job, config)
        return None
    with one_of_joblibs(ledger), ends_job():
        standing = ledger.claim(job, fail_fast=config.sweep.fail_fast) or _record(ledger, job, config)
    if standing.status == "interrupted" or (standing.status == "failed" and config.sweep.fail_fast):
        # If the sweep ends now, joblib kills the processes of the other jobs. Therefore, wait until they have ended.
        ledger.wait_until_alone()
        raise SystemExit(standing.exit_status)
    return value_for_sweeper(standing, ledger, hydra)


def _run_as_slurm_job(ledger: Ledger, job: Job, config: RunConfig) -> None:
    """Runs the job, and records the outcome in the ledger.

    Requeues the job if the signal that Slurm sends before the time limit ended the job. If the job has not finished,
    raises SystemExit with an exit status for Slurm.
    """
    if is_surplus_task():
        return
    if "SLURM_RESTART_COUNT" in os.environ:  # resume from this job's own checkpoint
        config = dataclasses.replace(config, ckpt=dataclasses.replace(config.ckpt, resume="auto"))
    warning = warning_signal()
    with ends_job(warning):
        standing = ledger.claim(job, fail_fast=config.sweep.fail_fast) or _record(ledger, job, config)
    if standing.exit_status == 128 + warning:
        batch_job.requeue()
    if standing.exit_status:
        raise SystemExit(standing.exit_status)


def value_for_sweeper(standing: Standing, ledger: Ledger, hydra: Any) -> float | None:
    """Returns the objective to report to the sweeper for a job that has ended, or the worst possible objective if the
    job has no comparable objective. `hydra` is Hydra's own configuration."""
    if standing.status != "finished":
        return _worst(hydra)
    # A resumed job with no step left may have no objective, and a diverged job may have NaN. Optuna accepts neither.
    is_number = standing.objective is not None and not math.isnan(standing.objective)
    return standing.objective if is_number and _is_comparable(standing, ledger) else _worst(hydra)


def _record(ledger: Ledger, job: Job, config: RunConfig) -> Standing:
    """Runs a job whose start is already recorded in the ledger, and appends the outcome to the ledger."""
    reached, status, told = None, 0, None
    try:
        reached = _drive(config)
    except BaseException as error:
        status = tell(error)
        told = None if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    outcome: Status = "finished" if not status else "interrupted" if status in INTERRUPTED else "failed"
    name, objective, direction = reached or (None, None, "minimize")
    standing = Standing(job, outcome, os.getpid(), objective, status, told, name, direction)
    try:
        ledger.append(outcome, job, **standing.objective_fields(), exit_status=status, error=told)
    except (OSError, StorageError) as error:  # the job has ended, and its result must not be lost as well
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        print(
            f"parallax_runner: {ledger.path} cannot be written: {reason}. The outcome of {job.title} is "
            f"{outcome}, but a resumed sweep runs this job again",
            file=sys.stderr,
        )
    return standing


def _is_comparable(standing: Standing, ledger: Ledger) -> bool:
    """Returns whether a job has the same kind of objective as the first job of the sweep. If it does not, prints a
    note."""
    first = ledger.read().objective_name
    if standing.objective_name == first:
        return True
    print(
        f"parallax_runner: {standing.job.title}: its objective ({standing.objective_name}) cannot be compared "
        f"with the objective of the first job ({first}). No job is ranked, and Optuna treats this job as the worst",
        file=sys.stderr,
    )
    return False


def _drive(config: RunConfig) -> Objective | None:
    from parallax_runner.driver.pipeline import drive

    if config.sweep.device_per_job and config.sweep.dir is not None:
        with own_gpu(Path(config.sweep.dir)):
            return drive(config)
    return drive(config)


def _worst(hydra: Any) -> float | None:
    """Returns the objective of a failed job. For Optuna, this is the worst possible number, so that Optuna tries other
    values. For Hydra's own sweeper, the objective is None."""
    if not str(hydra.sweeper.get("_target_", "")).endswith(".OptunaSweeper"):
        return None
    return -math.inf if maximizes(hydra.sweeper.get("direction")) else math.inf
