"""Runs the processes of a plan to completion, handles their reports, and restarts them after a failure."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.checkpoints.origin import source_of
from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.objective import Goal
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import ClusterSize
from parallax_runner.driver import phases, recovery, report
from parallax_runner.driver.artifacts import RunArtifacts
from parallax_runner.driver.failure_origins import with_origins
from parallax_runner.driver.hosts_back import when_back
from parallax_runner.driver.launch_spec import launch_spec
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.resizing import Resizing
from parallax_runner.driver.run_state import RunState
from parallax_runner.driver.run_summary import global_batch
from parallax_runner.driver.segments import Handler, MakeSegments, Segments
from parallax_runner.errors import CheckpointError, LaunchError
from parallax_runner.launch import processes
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.activity import Activity
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.launch.watch import early_end
from parallax_runner.plan.plan import Plan
from parallax_runner.process import stage_times as stages
from parallax_runner.profile.start_of_run import prepare
from parallax_runner.track.metric_totals import MetricTotals
from parallax_runner.track.progress import ProgressDisplay
from parallax_runner.track.run_record import VALIDATION, RunRecord
from parallax_runner.track.tracker import NoTracker, Tracker
from parallax_runner.train.group_rows import FOLDER, delete_rows, folder_of_step, group_values

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph

log = logging.getLogger(__name__)


def supervise(
    prepared: PreparedRun,
    state: RunState,
    tracker: Tracker,
    artifacts: RunArtifacts,
    interrupts: Interrupts,
    make_segments: MakeSegments,
    resizing: Resizing,
) -> tuple[PreparedRun, RunRecord | None, processes.RunResult]:
    """Runs the processes, with as many restarts as the state of the run allows. Returns the run as it was last planned,
    the record and the result of the run. The record is None if the run does not keep its training.

    `resizing` decides with how many workers each attempt starts. `make_segments` makes `state.segments`, which decides
    between two segments of the training how all ranks continue.
    """
    start, config = prepared.start, prepared.config
    with ExitStack() as stack:
        shown_in = None if frozen.shows_progress(config) else stack.enter_context(open(os.devnull, "w"))
        steps = config.train.steps if prepared.keeps_training else None
        display = stack.enter_context(ProgressDisplay(steps=steps, log_every=config.train.log_every, stream=shown_in))
        record = _record_of(prepared, steps, tracker, display)
        segments = state.segments = make_segments(record, Path(config.ckpt.resume) if start.first_step else None)
        segments.is_stopping = lambda: interrupts.received
        if start.first_step:
            display.say(f"resumed from {source_of(Path(config.ckpt.resume))} at step {start.first_step}")
        attempts = _Attempts(prepared, state, artifacts, interrupts, record, display, resizing)
        result = attempts.run_next()
        while attempts.restart_after(result):
            result = attempts.run_next()
        if result.status == "finished":
            segments.finish(record.last_step)
    delete_rows(prepared.run_dir / FOLDER)  # those of a validation that was interrupted
    return attempts.prepared, record if prepared.keeps_training else None, result


class _Attempts:
    """The attempts of one run, one after the other. `prepared` is the run as it was last planned."""

    def __init__(
        self,
        prepared: PreparedRun,
        state: RunState,
        artifacts: RunArtifacts,
        interrupts: Interrupts,
        record: RunRecord,
        display: ProgressDisplay,
        resizing: Resizing,
    ) -> None:
        self.prepared = prepared
        self._config, self._plan = prepared.config, prepared.planned.plan
        self._state, self._restarts, self._segments = state, state.restarts, state.segments
        self._artifacts, self._interrupts, self._resizing = artifacts, interrupts, resizing
        self._record, self._display = record, display
        self._has_run = False

    def run_next(self) -> processes.RunResult:
        """Runs an attempt to its end."""
        self._settle_size()
        config, plan = self._segments.begin_attempt(self._config, self._plan)
        self._config, self._plan = config, plan
        first_step = recovery.step_of(config)
        on_stage = phases.on_stage(self._display.show_phase, first_step)
        on_message = _listener(self._record, self._on_checkpoint, early_end.Watch(), on_stage, self._segments)
        prepare(config.profile, first_step=first_step)
        self._display.show_phase(phases.starting(plan))
        ends_early = self._resizing.ends_early
        make_spec = functools.partial(launch_spec, config, plan, self.prepared.run_dir, ends_early=ends_early)
        waits = self._restarts.all and not plan.worker_numbers  # otherwise `_settle_size` has waited
        spec = when_back(make_spec) if waits else make_spec()
        try:
            result = processes.run(spec, on_message=on_message, on_stall=report.tell_stall, interrupts=self._interrupts)
        except LaunchError as error:
            if not plan.worker_numbers or not self._has_run:
                raise
            result = _lost_since_check(error)
        self._has_run = True
        return with_origins(result, self.prepared.config)

    def restart_after(self, result: processes.RunResult) -> bool:
        """Prepares another attempt from the newest checkpoint. Returns False if there is none, because the run has
        ended."""
        failure = self._restarts.failure_to_retry(result, was_stopped=self._interrupts.received)
        if failure is None and not result.resizes:
            return False
        try:
            self._config = self.prepared.start.again()
            frozen.freeze(self._config, self.prepared.run_dir)
        except OSError as error:
            log.error("cannot restart the run: %s", error)
            return False
        step = recovery.step_of(self._config)
        if failure is not None:
            self._restarts.count(failure)
            counted, most = self._restarts.counted, self._restarts.most
            report.tell_restart(failure, step=step, restart=counted, max_restarts=most)
        self._record.restart(step)
        self._segments.restart(step, recovery.epoch_of(self._config))
        return True

    def _settle_size(self) -> None:
        """Waits for the workers of the next attempt, and continues the record and the segments with their number."""
        resized = self._resizing.before_attempt(self.prepared)
        if resized is not self.prepared:
            self.prepared = resized
            self._config, self._plan = resized.config, resized.planned.plan
            values = _group_values(resized.run_dir, resized.planned.single, self._plan)
            examples = global_batch(self._config, self._plan.contributors)
            self._record.resize(self._plan.workers, self._plan.servers, examples, values)
            self._segments.resize(self._plan.workers)
        _note_size(self._state, self._plan, self._config)

    def _on_checkpoint(self, prefix: Path) -> None:
        self._artifacts.on_checkpoint(prefix)
        self._resizing.on_checkpoint()
        self._restarts.on_checkpoint()


def _lost_since_check(error: LaunchError) -> processes.RunResult:
    """Returns the result of an attempt that could not start, although its processes or hosts were there. One of them
    may have been lost in between, so the next attempt looks for them again."""
    failure = Failure("run", 0, "", str(error), (), parts=error.parts)
    return processes.RunResult("failed", error.exit_status, failure)


def _note_size(state: RunState, plan: Plan, config: RunConfig) -> None:
    """Notes the size of the cluster for the summary, if it may change."""
    if not plan.worker_numbers:
        return
    size: dict[str, Any] = {"workers": plan.workers, "servers": plan.servers}
    if hosts := ClusterSize.of(config.cluster).hosts:
        size["hosts"] = list(hosts)
    if not state.sizes or state.sizes[-1] != {**size, "step": state.sizes[-1]["step"]}:
        state.sizes.append({"step": recovery.step_of(config), **size})


def _record_of(prepared: PreparedRun, steps: int | None, tracker: Tracker, display: ProgressDisplay) -> RunRecord:
    """Returns the record of a run that ends after `steps` steps. If the run does not keep its training, the tracker
    receives no training metrics."""
    config, planned = prepared.config, prepared.planned
    plan, single = planned.plan, planned.single
    first_step = prepared.start.first_step
    return RunRecord(
        workers=plan.workers,
        steps=steps,
        last_step=first_step,
        log_every=config.train.log_every,
        contributors=plan.contributors if plan.options.backup_workers else None,
        global_batch=global_batch(config, plan.contributors),
        words_per_example=planned.dataset.words_per_example,
        tracker=tracker if prepared.keeps_training else NoTracker(),
        display=display,
        validation_metric=single.validation_metric,
        unknown_loss=single.unknown_loss,
        totals=_metric_totals(single, plan, first_step),
        knows_validation_loss=single.knows_validation_loss,
        validation_results=single.validation_metrics.results if single.validation_metrics else None,
        goal=planned.goal,
        on_validated=_best_keeper(config, planned.goal),
        group_values=_group_values(prepared.run_dir, single, plan),
        part=config.read.part if action_of(config).names_part else VALIDATION,
    )


def _group_values(run_dir: Path, single: SingleDeviceGraph, plan: Plan) -> Callable[[int], dict[str, float]] | None:
    """Returns the function that computes the metrics of groups from the rows that all workers wrote after a step."""
    measures = single.validation_metrics.measures if single.validation_metrics else {}
    if not measures:
        return None
    return lambda step: group_values(folder_of_step(run_dir, step), plan.workers, measures)


def _metric_totals(single: SingleDeviceGraph, plan: Plan, first_step: int) -> MetricTotals | None:
    if single.metrics is None:
        return None
    waits_for_all = plan.options.waits_for_all
    return MetricTotals(plan.workers, single.metrics.results, waits_for_all=waits_for_all, last_step=first_step)


def _listener(
    record: RunRecord,
    on_saved: Callable[[Path], None],
    watch: early_end.Watch,
    on_stage: Callable[..., Mapping[str, Any] | None],
    segments: Segments,
) -> processes.OnMessage:
    """Returns the function that passes each report of a rank to its handler."""

    def on_progress(rank: int, **fields: Any) -> wire.Answer | None:
        if record.startup_secs is None:
            stages.tell("first step", sum(fields["step_secs"]))
        record.on_progress(rank, **fields)
        return segments.answer()

    def on_checkpoint(_: int, prefix: str) -> None:
        on_saved(Path(prefix))

    def on_alive(rank: int, step: int | None, doing: Activity, **_: Any) -> None:
        record.on_alive(rank, step)
        watch.on_alive(rank, doing)

    told: set[str] = set()

    def once(kind: str, tell: Callable[..., None]) -> Callable[..., None]:
        """Returns a handler that passes only the first report of its kind on, since the reports of all workers usually
        have the same reason."""

        def on_report(rank: int, **fields: Any) -> None:
            if kind not in told:
                tell(rank, **fields)
            told.add(kind)

        return on_report

    handlers: dict[str, Handler] = {
        "progress": on_progress,
        "alive": on_alive,
        "stage": on_stage,
        "leave": watch.on_leave,
        "validation": record.on_validation,
        "checkpoint": on_checkpoint,
        "skipped": lambda _, step: report.tell_skipped(step),
        "unused_gpus": once("unused_gpus", report.tell_unused_gpus),
        "other_examples": once("other_examples", report.tell_other_examples),
        "printed": report.tell_printed,
        **segments.handlers(),
    }

    def on_message(message: processes.Message) -> Mapping[str, Any] | wire.Answer | None:
        handler = handlers.get(message.kind) if message.role == "worker" else None
        if handler is None:
            return None
        try:
            given = inspect.signature(handler).bind(message.index, **message.fields)
        except TypeError as error:
            raise LaunchError(f"report {message.kind!r} has unexpected fields: {error}") from error
        return handler(*given.args, **given.kwargs)

    return on_message


def _best_keeper(config: RunConfig, goal: Goal) -> Callable[[int, float], None] | None:
    """Returns the function that records each validation in the checkpoint folder, so that the best checkpoint is kept.
    Returns None if the run does not record validations there."""
    if not config.ckpt.enabled or not action_of(config).trains:
        return None
    from parallax_runner.checkpoints.best import note_validated

    def keep(step: int, value: float) -> None:
        try:
            note_validated(Path(config.ckpt.folder), step, value, goal)
        except CheckpointError as error:  # training continues, because it does not depend on this record
            log.warning("%s", error)

    return keep
