"""Runs one job in the driver: locks its folder, lets its action run, and records how it ended.

The stages of the driver, from a configuration to the record of a run, are in three modules:
config → data → captured graph → analysis → plan (planned_run.py) → start (start_run.py) → launch → record
(process_run.py)
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.error_origins import name_origins
from parallax_runner.config.objective import Objective
from parallax_runner.config.resume_command import resume_command
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import recovery, report, submission
from parallax_runner.driver.epochs import MakeEpochs
from parallax_runner.driver.process_run import end_interrupted
from parallax_runner.driver.recording import tracker_class
from parallax_runner.driver.request import Request
from parallax_runner.driver.run_lock import alone_in, alone_in_checkpoints
from parallax_runner.driver.run_state import RunState
from parallax_runner.errors import ConfigError, ParallaxError
from parallax_runner.graph.build import MODEL, Source
from parallax_runner.launch.interrupts import Interrupted, Interrupts
from parallax_runner.launch.launchers.slurm import batch_job
from parallax_runner.launch.logs import LogFile, redirect_logs
from parallax_runner.process import changes
from parallax_runner.process import stage_times as stages
from parallax_runner.process.home import set_home
from parallax_runner.process.limits import explained
from parallax_runner.process.tensorflow_allocator import use_system_allocator
from parallax_runner.process.terminal import log_losses
from parallax_runner.track.run_record import SUMMARY, read_summary

log = logging.getLogger(__name__)


def drive(
    config: RunConfig,
    source: Source = MODEL,
    epochs: MakeEpochs | None = None,
    on_late_signal: Callable[[int], None] = lambda _: None,
) -> Objective | None:
    """Runs one job to completion. Returns the job's objective, or None if the action has no objective.

    `source` provides the graph and the data, from the configuration or from a script. `epochs` is a function that takes
    the run's record and the checkpoint from which the run resumes. It returns the object that is called between epochs.
    `on_late_signal` receives a signal that came too late to stop the run, because the training had ended.

    Raises ParallaxError for an error in the configuration, data, graph or plan. Raises RunEnded, a SystemExit with the
    run's exit status, if the run failed or was stopped.
    """
    # This setting hides TensorFlow's notes about its build, but not its errors.
    changes.set_default("TF_CPP_MIN_LOG_LEVEL", "2")
    use_system_allocator()
    set_home()
    run_dir = Path(config.run_dir).resolve()
    config = size_cluster(config)
    action_of(config).begin(config)
    state = RunState.begun(config)
    more = batch_job.ending_signals(config)
    with Interrupts(*more) as interrupts, batch_job.started_again(interrupts), _alone_in(config, run_dir):
        request = Request(config, source, run_dir, state, interrupts, epochs, before=read_summary(run_dir))
        try:
            objective = _drive(request)
        except (Exception, Interrupted) as error:
            _leave_error(request, error)
    if interrupts.first_signal is not None:
        on_late_signal(interrupts.first_signal)
    submission.hand_over(request)  # the job can start in this folder at once, so the lock must be released first
    return objective


@contextmanager
def _alone_in(config: RunConfig, run_dir: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(alone_in(run_dir))
            stack.enter_context(alone_in_checkpoints(config))
        except ConfigError as error:
            name_origins(error, config)
            raise
        except OSError as error:
            raise report.explain_storage(error, run_dir) from error
        yield


def _drive(request: Request) -> Objective | None:
    config, run_dir = request.config, request.run_dir
    redirect_logs(run_dir, config.redirect_path)
    _log_to(run_dir)
    stages.tell("start of Python", stages.process_age_secs())
    recovery.forget_failure(run_dir)
    # The summary of an earlier run must not be mistaken for the summary of this run.
    (run_dir / SUMMARY).unlink(missing_ok=True)
    recorder = tracker_class(config)
    if recorder is not None:
        recorder.check(frozen.plain(config))
    objective: Objective | None = action_of(config).run(request)
    return objective


def _leave_error(request: Request, error: BaseException) -> None:
    """Records how a job ended that has raised an error. Always raises: RunEnded if a signal has stopped the job,
    otherwise the error, explained."""
    config, run_dir, state = request.config, request.run_dir, request.state
    name_origins(error, config)
    if request.interrupts.received:
        command = resume_command(run_dir, has_own_checkpoint=False, resume=config.ckpt.resume)
        end_interrupted(request, config, state.known(), command)
    log.error("%s", error, exc_info=True)
    told = report.explain_storage(explained(error), run_dir)
    reason = str(told) if isinstance(told, ParallaxError) else f"{type(told).__name__}: {told}"
    report.leave_summary(run_dir, dataclasses.replace(state.known(), status="failed", error=reason))
    raise told from told.__cause__


def _log_to(run_dir: Path) -> None:
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    stages.log_to(LogFile(run_dir / "logs" / "driver.log"))
    log_losses()
