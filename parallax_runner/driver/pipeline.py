"""All stages of the driver, from a configuration to the record of a run.

config → data → captured graph → analysis → plan → launch (rank.py runs in each worker) → record
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from parallax_runner.config import frozen
from parallax_runner.config.cluster_size import size_cluster, visible_gpus
from parallax_runner.config.error_origins import name_origins
from parallax_runner.config.objective import Objective
from parallax_runner.config.resume_command import resume_command
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import loss_check, partition_search, recovery, report, slurm_job, validation
from parallax_runner.driver.artifacts import RunArtifacts
from parallax_runner.driver.batch_size import with_batch_size
from parallax_runner.driver.cost_model import constants_of
from parallax_runner.driver.data_position import identity_in
from parallax_runner.driver.datasets import dataset_facts
from parallax_runner.driver.ended import RunEnded
from parallax_runner.driver.epochs import MakeEpochs
from parallax_runner.driver.exact_on_gpus import compute_exactly
from parallax_runner.driver.export_model import with_export
from parallax_runner.driver.goal import goal_of
from parallax_runner.driver.hand_over import cache_dir_of, own_folder_in, shipment_of
from parallax_runner.driver.jobs.partition_trials import search_apart
from parallax_runner.driver.make_plan import advice_on, measure, measured_rows, plan_run
from parallax_runner.driver.own_optimizer import without_optimizer
from parallax_runner.driver.partition_search import PartitionSearch
from parallax_runner.driver.patience import epochs_of
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.recording import open_tracker, tracker_class
from parallax_runner.driver.recovery import Recovery
from parallax_runner.driver.run_lock import alone_in, alone_in_checkpoints
from parallax_runner.driver.run_state import RunState
from parallax_runner.driver.run_summary import RunSummary, global_batch, with_training
from parallax_runner.driver.simulate import run_simulation
from parallax_runner.driver.starting_point import leave_for_workers, with_start
from parallax_runner.driver.supervise import supervise
from parallax_runner.driver.verify_capture import verify_capture
from parallax_runner.errors import ConfigError, ParallaxError, Setting
from parallax_runner.graph.build import MODEL, Source
from parallax_runner.launch.interrupts import Interrupted, Interrupts
from parallax_runner.launch.logs import LogFile, redirect_logs
from parallax_runner.launch.processes import RunResult
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.process import changes
from parallax_runner.process import stage_times as stages
from parallax_runner.process.home import set_home
from parallax_runner.process.limits import explained
from parallax_runner.process.stage_times import stage
from parallax_runner.process.terminal import log_losses
from parallax_runner.shipment.folder import removed_at_end
from parallax_runner.track.run_record import SUMMARY, RunRecord, read_summary, write_summary
from parallax_runner.track.system_metrics import sampling
from parallax_runner.track.tracker import NoTracker, Tracker

if TYPE_CHECKING:
    pass

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
    set_home()
    run_dir = Path(config.run_dir).resolve()
    config = size_cluster(config)
    if config.action == "verify" and visible_gpus(config.cluster, rank=0):
        compute_exactly()
    state = RunState.begun(config)
    if config.action == "sync":
        raise ConfigError("this action runs no job").about(
            Setting("action", "sync"), remedy="use this action alone, as in action=sync run_dir=runs/first"
        )
    more = slurm_job.ending_signals(config)
    with Interrupts(*more) as interrupts, slurm_job.started_again(interrupts), _alone_in(config, run_dir):
        try:
            objective = _drive(config, source, run_dir, state, interrupts, epochs)
        except (Exception, Interrupted) as error:
            name_origins(error, config)
            if interrupts.received:
                command = resume_command(run_dir, has_own_checkpoint=False, resume=config.ckpt.resume)
                _end_interrupted(config, run_dir, state.known(), interrupts, command)
            log.error("%s", error, exc_info=True)
            told = report.explain_storage(explained(error), run_dir)
            reason = str(told) if isinstance(told, ParallaxError) else f"{type(told).__name__}: {told}"
            report.leave_summary(run_dir, dataclasses.replace(state.known(), status="failed", error=reason))
            raise told from told.__cause__
    if interrupts.first_signal is not None:
        on_late_signal(interrupts.first_signal)
    if state.job_script is not None:  # the job can start in this folder at once, so the lock must be released first
        slurm_job.hand_over(config, state.job_script)
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


def _drive(
    config: RunConfig,
    source: Source,
    run_dir: Path,
    state: RunState,
    interrupts: Interrupts,
    epochs: MakeEpochs | None,
) -> Objective | None:
    redirect_logs(run_dir, config.redirect_path)
    _log_to(run_dir)
    stages.tell("start of Python", stages.process_age_secs())
    recovery.forget_failure(run_dir)
    before = read_summary(run_dir)
    # The summary of an earlier run must not be mistaken for the summary of this run.
    (run_dir / SUMMARY).unlink(missing_ok=True)
    if (recorder := tracker_class(config)) is not None:
        recorder.check(frozen.plain(config))
    if config.action == "simulate":
        run_simulation(config, run_dir, functools.partial(_measure, config, source, run_dir, interrupts))
        write_summary(run_dir, dataclasses.replace(state.summary, status="finished").flat())
        return None
    dataset = source.load_dataset(config)
    config = with_batch_size(config, dataset)
    shipment = shipment_of(config, source.build_graph(config, dataset), dataset)
    single = shipment.single
    report.tell_notes(single.notes)
    config = without_optimizer(config, single)
    measured = measured_rows(config, shipment, run_dir, interrupts)
    plan = partition_search.planned(config, plan_run(config, single, measured=measured))
    plan = validation.planned(config, plan, single, dataset)
    report.tell_notes(loss_check.notes(config, plan, single, dataset))
    goal = goal_of(config, single, dataset)
    if plan.servers:
        from parallax_runner.train.protocols import check_protocol

        check_protocol(config.comm.ps.protocol)
    state.summary = dataclasses.replace(
        state.summary,
        comm=plan.comm,
        workers=plan.workers,
        servers=plan.servers,
        global_batch=global_batch(config, plan.contributors),
    )
    with stage("show the plan"):
        plans.save(plan, run_dir / "plan.json")
        if frozen.shows_progress(config) and not partition_search.is_due(config, plan):
            explains = config.action == "plan"
            report.show_plan(
                plan,
                constants=constants_of(config) if explains else None,
                advice=advice_on(plan, config, single, measured) if explains else None,
            )
    if config.action == "plan":
        write_summary(run_dir, dataclasses.replace(state.summary, status="finished").flat())
        return None
    if slurm_job.is_to_submit(config):
        command = resume_command(run_dir, has_own_checkpoint=False, resume=config.ckpt.resume)
        state.job_script = slurm_job.write_script(config, plan, run_dir, command)
        return None
    # A plan does not need the notes about the data, which can mean reading all examples to count them.
    report.tell_notes(getattr(dataset, "notes", ()))
    identity = identity_in(config, dataset)
    start = Recovery.of(with_start(config, single, dataset, identity, run_dir), config.ckpt.resume)
    prepared = PreparedRun(start, plan, source, shipment, measured, goal, epochs, before)
    with removed_at_end(run_dir), own_folder_in(cache_dir_of(config, shipment)) as data_folder:
        leave_for_workers(config, shipment, identity, run_dir, data_folder)
        frozen.freeze(start.config, run_dir)
        if config.action == "verify":
            verify_capture(prepared, state)
        return _run(prepared, state, interrupts)


def _measure(config: RunConfig, source: Source, run_dir: Path, interrupts: Interrupts) -> Measured:
    dataset = source.load_dataset(config)
    config = with_batch_size(config, dataset)
    shipment = shipment_of(config, source.build_graph(config, dataset), dataset)
    return measure(config, shipment, run_dir, interrupts)


def _end_interrupted(
    config: RunConfig, run_dir: Path, summary: RunSummary, interrupts: Interrupts, command: str | None
) -> NoReturn:
    log.warning("%s: ended", interrupts.signal_name)
    summary = dataclasses.replace(summary, status="interrupted")
    report.leave_summary(run_dir, summary)
    report.tell_end(summary, None, run_dir, command, frozen.needed_variables(config))
    raise RunEnded(interrupts.exit_status, summary, run_dir)


def _run(prepared: PreparedRun, state: RunState, interrupts: Interrupts) -> Objective | None:
    start, plan = prepared.start, prepared.plan
    single, dataset = prepared.single, prepared.dataset
    config, run_dir = prepared.config, prepared.run_dir
    state.summary = dataclasses.replace(state.summary, first_step=start.first_step)
    tracker: Tracker = NoTracker()
    try:
        with interrupts.held():
            tracker = open_tracker(config, plan, run_dir, state.summary.flat())
            if not isinstance(tracker, NoTracker):  # the facts can mean reading all validation examples
                for facts in dataset_facts(config, dataset):
                    tracker.log_dataset(facts)
            artifacts = RunArtifacts(config, run_dir, tracker)
        with sampling(tracker, run_dir):
            record, result, search = None, None, None
            if partition_search.is_due(config, plan):
                make_plan = functools.partial(plan_run, single=single, measured=prepared.measured)
                search = state.search = PartitionSearch(config, run_dir, plan, make_plan, tracker)
            try:
                if search is not None and not search.is_within:
                    start, result = search_apart(search, start, state.restarts, interrupts)
                if result is None:
                    record, result = supervise(
                        start,
                        plan,
                        single,
                        dataset,
                        tracker,
                        artifacts,
                        state.restarts,
                        interrupts,
                        goal=prepared.goal,
                        search=search,
                        epochs=prepared.make_epochs or epochs_of(config),
                    )
            finally:
                if search is not None:
                    plan = search.plan
                    search.close()
            if config.action == "search":
                record = None  # the steps of a search are not part of the result
        if record is not None:
            record.end()
        with interrupts.noted():
            words = with_export(prepared, result.status, _last_words(result))
        summary = _with_result(state.known(), prepared, plan, record, result, words)
        if result.failure is not None:
            start.leave_failure(
                result.failure,
                step=0 if record is None else record.last_step,
                restarts=summary.restarts,
                ckpt_path=summary.ckpt_path,
            )
        state.summary = summary = dataclasses.replace(summary, tracker_run_id=tracker.run_id)
        summary_path = report.leave_summary(run_dir, summary)
        if config.action == "train" and result.status == "finished":
            shows = not frozen.is_quiet(config)
            report.leave_outcome(plan, summary, words, run_dir, shows=shows)
        # The run has ended. If a signal arrives from now on, this process must not wait for the tracker.
        was_interrupted = interrupts.received
        with interrupts.noted():
            report.tell_profile(config.profile)
            artifacts.close(
                summary_path,
                saved_model=None if summary.export is None else summary.export.saved_model,
                keras_model=None if summary.keras is None else summary.keras.keras_model,
            )
            tracker.end(summary.status, hurry=lambda: interrupts.again or (interrupts.received and not was_interrupted))
    except BaseException:
        newest = start.newest()
        ckpt_path = None if newest is None else str(newest)
        state.summary = dataclasses.replace(state.known(), ckpt_path=ckpt_path, tracker_run_id=tracker.run_id)
        tracker.end("interrupted" if interrupts.received else "failed")
        if interrupts.received:
            _end_interrupted(config, run_dir, state.summary, interrupts, start.command(ckpt_path))
        raise
    # A verification that has found a difference is complete, so there is nothing to resume.
    ended_early = result.status != "finished"
    if ended_early or not frozen.is_quiet(config):
        command = start.command(summary.ckpt_path) if ended_early else None
        report.tell_end(summary, result.failure, run_dir, command, frozen.needed_variables(config))
    if summary.status != "finished":
        status = interrupts.exit_status if result.status == "interrupted" else result.exit_status or 1
        raise RunEnded(status, summary, run_dir)
    if config.action != "train" or validation.lacks_examples(config, single, dataset):
        return None  # the training loss is not comparable with the validation loss of other runs
    return summary.objective


def _with_result(
    summary: RunSummary,
    prepared: PreparedRun,
    plan: Plan,
    record: RunRecord | None,
    result: RunResult,
    words: Mapping[int, Mapping[str, Any]],
) -> RunSummary:
    """Returns the summary with the result of the processes. `plan` is the last plan of the run, and `words` are the
    last messages of the ranks."""
    summary = dataclasses.replace(summary, status=result.status)
    if record is not None:
        summary = with_training(summary, record, words, prepared.before)
    if (verification := summary.verification) is not None:
        verification = dataclasses.replace(verification, differ_unmerged=plan.differ_unmerged)
        summary = dataclasses.replace(summary, verification=verification)
    if result.status != "finished" and (newest := prepared.start.newest()) is not None:
        summary = dataclasses.replace(summary, ckpt_path=str(newest))
    return summary if result.failure is None else dataclasses.replace(summary, error=str(result.failure))


def _last_words(result: RunResult) -> dict[int, dict[str, Any]]:
    """Returns the last message of each rank."""
    return {rank: fields for (role, rank), fields in result.done.items() if role == "worker"}


def _log_to(run_dir: Path) -> None:
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    stages.log_to(LogFile(run_dir / "logs" / "driver.log"))
    log_losses()
