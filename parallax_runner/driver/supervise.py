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
from parallax_runner.driver import phases, recovery, report
from parallax_runner.driver.artifacts import RunArtifacts
from parallax_runner.driver.failure_origins import with_origins
from parallax_runner.driver.hosts_back import when_back
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.run_state import RunState
from parallax_runner.driver.run_summary import global_batch
from parallax_runner.driver.segments import Handler, MakeSegments, Segments
from parallax_runner.errors import CheckpointError, LaunchError
from parallax_runner.launch import processes
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.activity import Activity
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.launch.job import Job, LaunchSpec, thread_environment
from parallax_runner.launch.launchers.choose import launcher_of
from parallax_runner.launch.launchers.slurm.allocation import sweep_job_id
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

WORKER = "parallax_runner.worker"


def supervise(
    prepared: PreparedRun,
    state: RunState,
    tracker: Tracker,
    artifacts: RunArtifacts,
    interrupts: Interrupts,
    make_segments: MakeSegments,
) -> tuple[RunRecord | None, processes.RunResult]:
    """Runs the processes, with as many restarts as the state of the run allows. Returns the record and the result of
    the run. The record is None if the run does not keep its training.

    `make_segments` makes `state.segments`, which decides between two segments of the training how all ranks continue.
    """
    start, restarts = prepared.start, state.restarts
    config, plan, run_dir = prepared.config, prepared.planned.plan, prepared.run_dir
    with ExitStack() as stack:
        shown_in = None if frozen.shows_progress(config) else stack.enter_context(open(os.devnull, "w"))
        steps = config.train.steps if prepared.keeps_training else None
        display = stack.enter_context(ProgressDisplay(steps=steps, log_every=config.train.log_every, stream=shown_in))
        record = _record_of(prepared, steps, tracker, display)
        segments = state.segments = make_segments(record, Path(config.ckpt.resume) if start.first_step else None)
        segments.is_stopping = lambda: interrupts.received
        if start.first_step:
            display.say(f"resumed from {source_of(Path(config.ckpt.resume))} at step {start.first_step}")
        while True:
            config, plan = segments.begin_attempt(config, plan)
            first_step = recovery.step_of(config)
            on_stage = phases.on_stage(display.show_phase, first_step)
            on_message = _listener(record, artifacts, early_end.Watch(), on_stage, segments)
            prepare(config.profile, first_step=first_step)
            display.show_phase(phases.starting(plan))
            make_spec = functools.partial(launch_spec, config, plan, run_dir)
            spec = when_back(make_spec) if restarts.all else make_spec()
            result = processes.run(spec, on_message=on_message, on_stall=report.tell_stall, interrupts=interrupts)
            result = with_origins(result, start.config)
            failure = restarts.failure_to_retry(result, was_stopped=interrupts.received)
            if failure is None:
                if result.status == "finished":
                    segments.finish(record.last_step)
                break
            try:
                config = start.again()
                frozen.freeze(config, run_dir)
            except OSError as error:
                log.error("cannot restart the run: %s", error)
                break
            restarts.count(failure)
            step = recovery.step_of(config)
            report.tell_restart(failure, step=step, restart=restarts.done, max_restarts=restarts.most)
            record.restart(step)
            segments.restart(step, recovery.epoch_of(config))
    delete_rows(run_dir / FOLDER)  # those of a validation that was interrupted
    return record if prepared.keeps_training else None, result


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
    artifacts: RunArtifacts,
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
        artifacts.on_checkpoint(Path(prefix))

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


def launch_spec(config: RunConfig, plan: Plan, run_dir: Path, *, module: str = WORKER) -> LaunchSpec:
    """Returns the launch specification of a plan. Each worker runs `module`. Raises LaunchError if the launcher cannot
    start the plan, for example because there is no route to another host."""
    # Slurm signals all processes of a job at once, but only the driver may react to the signal.
    blocked = {} if sweep_job_id() is None else {wire.BLOCK_SIGNALS: "1"}
    launcher = launcher_of(config, plan)
    return LaunchSpec(
        job=Job(
            run_dir=run_dir,
            workers=plan.workers,
            servers=plan.servers,
            env=thread_environment(config.cluster.threads_per_worker) | blocked | frozen.for_processes(config),
            worker_module=module,
        ),
        launcher=launcher,
        grace_secs=launcher.grace_secs,
        shared=(run_dir, Path(config.ckpt.folder)) if config.ckpt.enabled else (run_dir,),
        hang_timeout_secs=config.train.hang_timeout_secs,
        stall_timeout_secs=config.train.stall_timeout_secs,
        together=plan.options.waits_for_all,
    )
