"""The second half of the driver: launch (rank.py runs in each worker) → record."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.objective import Objective
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import report
from parallax_runner.driver.artifacts import RunArtifacts
from parallax_runner.driver.datasets import dataset_facts
from parallax_runner.driver.ended import RunEnded
from parallax_runner.driver.export_model import with_export
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.recording import open_tracker
from parallax_runner.driver.request import Request
from parallax_runner.driver.resizing import Resizing
from parallax_runner.driver.run_summary import RunSummary, with_training
from parallax_runner.driver.supervise import supervise
from parallax_runner.driver.trainer import segments_of
from parallax_runner.launch.processes import RunResult
from parallax_runner.plan.plan import Plan
from parallax_runner.track.run_record import SUMMARY, RunRecord
from parallax_runner.track.system_metrics import sampling
from parallax_runner.track.tracker import NoTracker, Tracker

log = logging.getLogger(__name__)

Words = Mapping[int, Mapping[str, Any]]  # the last message of each rank


@dataclass
class _Opened:
    """The tracker of a run. It records nothing before it is opened."""

    tracker: Tracker = dataclasses.field(default_factory=NoTracker)


def run_processes(prepared: PreparedRun, request: Request) -> Objective | None:
    """Runs the processes to the end, and records and reports the result. Returns the objective of a trained run.

    Raises RunEnded if the run failed or was stopped.
    """
    state, opened = request.state, _Opened()
    state.summary = dataclasses.replace(state.summary, first_step=prepared.start.first_step)
    try:
        summary, result = _run_and_record(prepared, request, opened)
    except BaseException:
        _leave_after_error(prepared, request, opened.tracker)
        raise
    _tell_end(prepared, request, summary, result)
    return summary.objective if action_of(prepared.config).trains else None


def end_interrupted(request: Request, config: RunConfig, summary: RunSummary, command: str | None) -> NoReturn:
    """Records and reports a run that a signal has stopped. `command` continues it. Raises RunEnded."""
    log.warning("%s: ended", request.interrupts.signal_name)
    summary = dataclasses.replace(summary, status="interrupted")
    with request.interrupts.brief():
        report.leave_summary(request.run_dir, summary)
    report.tell_end(summary, None, request.run_dir, command, frozen.needed_variables(config))
    raise RunEnded(request.interrupts.exit_status, summary, request.run_dir)


def _run_and_record(prepared: PreparedRun, request: Request, opened: _Opened) -> tuple[RunSummary, RunResult]:
    config, run_dir, state, interrupts = prepared.config, prepared.run_dir, request.state, request.interrupts
    with interrupts.held():
        tracker = opened.tracker = open_tracker(config, prepared.planned.plan, run_dir, state.summary.flat())
        _log_data(prepared, tracker)
        artifacts = RunArtifacts(config, run_dir, tracker)
    with sampling(tracker, run_dir), ExitStack() as stack:
        try:
            segments, resizing = segments_of(prepared, tracker), Resizing(request, stack)
            prepared, record, result = supervise(prepared, state, tracker, artifacts, interrupts, segments, resizing)
        finally:
            state.segments.close()
    plan = state.segments.last_plan(prepared.planned.plan)
    if record is not None:
        record.end()
    with interrupts.noted():
        words = with_export(prepared, result.status, _last_words(result))
    was_interrupted = interrupts.received
    with interrupts.brief():
        summary = _with_result(state.known(), prepared, plan, record, result, words)
        _leave_failure(prepared, result, record, summary)
        state.summary = summary = dataclasses.replace(summary, tracker_run_id=tracker.run_id)
        report.leave_summary(run_dir, summary)
    if action_of(config).trains and summary.status == "finished":
        report.leave_outcome(plan, summary, words, run_dir, shows=not frozen.is_quiet(config))
    # The run has ended. If a signal arrives from now on, this process must not wait for the tracker.
    with interrupts.noted():
        _close(prepared, summary, artifacts)
        tracker.end(summary.status, hurry=lambda: interrupts.again or (interrupts.received and not was_interrupted))
    return summary, result


def _log_data(prepared: PreparedRun, tracker: Tracker) -> None:
    """Records the facts about the data. They can mean reading all validation examples."""
    if isinstance(tracker, NoTracker):
        return
    for facts in dataset_facts(prepared.config, prepared.planned.dataset):
        tracker.log_dataset(facts)


def _leave_failure(prepared: PreparedRun, result: RunResult, record: RunRecord | None, summary: RunSummary) -> None:
    if result.failure is None:
        return
    prepared.start.leave_failure(
        result.failure,
        step=0 if record is None else record.last_step,
        restarts=summary.restarts,
        ckpt_path=summary.ckpt_path,
    )


def _close(prepared: PreparedRun, summary: RunSummary, artifacts: RunArtifacts) -> None:
    """Records the files that the run leaves."""
    report.tell_profile(prepared.config.profile)
    artifacts.close(
        prepared.run_dir / SUMMARY,
        saved_model=None if summary.export is None else summary.export.saved_model,
        keras_model=None if summary.keras is None else summary.keras.keras_model,
    )


def _leave_after_error(prepared: PreparedRun, request: Request, tracker: Tracker) -> None:
    """Ends the record of a run in which an error was raised. Raises RunEnded if a signal has stopped the run."""
    state, start, interrupts = request.state, prepared.start, request.interrupts
    newest = start.newest()
    ckpt_path = None if newest is None else str(newest)
    state.summary = dataclasses.replace(state.known(), ckpt_path=ckpt_path, tracker_run_id=tracker.run_id)
    tracker.end("interrupted" if interrupts.received else "failed")
    if interrupts.received:
        end_interrupted(request, prepared.config, state.summary, start.command(ckpt_path))


def _tell_end(prepared: PreparedRun, request: Request, summary: RunSummary, result: RunResult) -> None:
    """Reports how the run ended. Raises RunEnded unless it has finished."""
    config, run_dir = prepared.config, prepared.run_dir
    # A verification that has found a difference is complete, so there is nothing to resume.
    ended_early = result.status != "finished"
    if ended_early or not frozen.is_quiet(config):
        command = prepared.start.command(summary.ckpt_path) if ended_early else None
        report.tell_end(summary, result.failure, run_dir, command, frozen.needed_variables(config))
    if summary.status == "finished":
        return
    status = result.exit_status or 1
    if result.status == "interrupted":
        status = request.interrupts.exit_status
    raise RunEnded(status, summary, run_dir)


def _with_result(
    summary: RunSummary,
    prepared: PreparedRun,
    plan: Plan,
    record: RunRecord | None,
    result: RunResult,
    words: Words,
) -> RunSummary:
    """Returns the summary with the result of the processes. `plan` is the last plan of the run, and `words` are the
    last messages of the ranks."""
    summary = dataclasses.replace(summary, status=result.status)
    if record is not None:
        summary = with_training(summary, record, words, prepared.before)
    if summary.verification is not None:
        verification = dataclasses.replace(summary.verification, differ_unmerged=plan.differ_unmerged)
        summary = dataclasses.replace(summary, verification=verification)
    newest = None if result.status == "finished" else prepared.start.newest()
    if newest is not None:
        summary = dataclasses.replace(summary, ckpt_path=str(newest))
    return summary if result.failure is None else dataclasses.replace(summary, error=str(result.failure))


def _last_words(result: RunResult) -> dict[int, dict[str, Any]]:
    """Returns the last message of each rank."""
    return {rank: fields for (role, rank), fields in result.done.items() if role == "worker"}
