"""Runs the trials of `partition=search` as separate jobs, for runs whose plan cannot change while their processes run.

Without synchronization, or with backup workers, there is no moment at which all ranks are between two steps. Each trial
then begins from the checkpoint of the previous trial, and training begins from the checkpoint of the last trial. If the
run writes checkpoints, these are the run's own checkpoints, so an interrupted run continues from them. A script and
`action=verify` count their own steps, and `action=search` keeps no trained values. In these cases, trials begin from
initial values, and their training is discarded.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree

from parallax_runner.config import frozen
from parallax_runner.config.schema import CkptConfig, PartitionConfig, ProfileConfig, RunConfig, TrackingConfig
from parallax_runner.data.identity import FILE_NAME as IDENTITY
from parallax_runner.driver import report
from parallax_runner.driver.failure_origins import with_origins
from parallax_runner.driver.jobs.child_job import run_child_job
from parallax_runner.driver.partition_search import PartitionSearch, tell, with_partitions
from parallax_runner.driver.recovery import Recovery, Restarts, continued, step_of
from parallax_runner.errors import Setting, TrainingError
from parallax_runner.files.link_or_copy import link_or_copy
from parallax_runner.files.plain import remove
from parallax_runner.launch import processes
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.planning.cut import Cut
from parallax_runner.search import record
from parallax_runner.search.trial import LEAST_STEPS, WARM_UP_STEPS, Trial
from parallax_runner.shipment.folder import DATA, folder_of


def search_apart(
    search: PartitionSearch, start: Recovery, restarts: Restarts, interrupts: Interrupts
) -> tuple[Recovery, processes.RunResult | None]:
    """Runs trials until the number of shards is chosen. Returns the Recovery from which training starts. Also returns
    the result of the search if the search failed or the run ends after it (`action=search`), otherwise None."""
    config = start.config
    if not config.ckpt.enabled:
        remove(_passed_on(start.run_dir))  # left by an earlier search
    goes_on = config.action == "train" and config.model["_target_"] != frozen.SCRIPT
    while True:
        search.next_plan()
        if search.choice is not None or (goes_on and step_of(config) + search.trial_steps > config.train.total_steps):
            break
        folder = start.run_dir / record.FOLDER / f"partitions_{search.partitions}"
        trial = _trial_config(config, search, folder, goes_on)
        result, by_rank = _run_trial(trial, search, start.run_dir, interrupts)
        if goes_on:
            config = with_partitions(config, config.partition.num)
            config = continued(config, str(_left_by(result) or start.newest_own() or config.ckpt.resume))
        if result.status != "finished":
            result = _named(with_origins(result, start.config), search.partitions, folder)
            failure = restarts.failure_to_retry(result, was_stopped=interrupts.received)
            if failure is None:
                return dataclasses.replace(start, config=config), result
            restarts.done += 1
            step = step_of(config) if goes_on else 0
            report.tell_restart(failure, step=step, restart=restarts.done, max_restarts=restarts.most)
        elif min(map(len, by_rank.values()), default=0) < WARM_UP_STEPS + LEAST_STEPS:
            reason = (
                f"training ends before a trial of {search.trial_steps} steps is complete (partition.steps_per_trial)"
            )
            if config.action == "search":
                raise TrainingError(reason).about(Setting("action", "search"))
            tell(f"{reason}, so no number of partitions can be chosen")
            break
        else:
            search.take(Trial.of(search.partitions, by_rank))
    settled = search.begin(config)
    ended = processes.RunResult("finished", 0) if config.action == "search" else None
    return dataclasses.replace(start, config=settled), ended


def _left_by(result: processes.RunResult) -> str | None:
    """Returns the checkpoint that a trial wrote when it ended."""
    path: str | None = result.done.get(("worker", 0), {}).get("ckpt_path")
    return path


def _run_trial(
    config: RunConfig, search: PartitionSearch, run_dir: Path, interrupts: Interrupts
) -> tuple[processes.RunResult, Mapping[int, Sequence[float]]]:
    """Runs a trial. Returns the result of the trial, and the durations of each rank's steps in seconds. `run_dir` is
    the folder of the run that the search belongs to."""
    from parallax_runner.graph.fingerprint import FILE_NAME as OUTLINE

    folder = Path(config.run_dir)
    remove(folder)  # removes the logs of an earlier search
    folder.mkdir(parents=True, exist_ok=True)
    link_or_copy(run_dir / OUTLINE, folder / OUTLINE)
    link_or_copy(run_dir / IDENTITY, folder / IDENTITY)
    if folder_of(run_dir).exists():
        copytree(folder_of(run_dir), folder_of(folder), copy_function=link_or_copy, ignore=_data)
    by_rank: dict[int, list[float]] = defaultdict(list)

    def on_message(message: processes.Message) -> None:
        if message.role == "worker" and message.kind == "progress":
            by_rank[message.index] += message.fields["step_secs"]

    try:
        result = run_child_job(
            config, search.plan, on_message=on_message, on_stall=report.tell_stall, interrupts=interrupts
        )
    finally:
        remove(folder_of(folder))
    return result, by_rank


def _data(_: str, names: Sequence[str]) -> list[str]:
    """Returns the folder of the data, which a trial reads where the run has written it."""
    return [name for name in names if name == DATA]


def _trial_config(config: RunConfig, search: PartitionSearch, folder: Path, goes_on: bool) -> RunConfig:
    first, ckpt = step_of(config) if goes_on else 0, config.ckpt
    if not goes_on:
        ckpt = CkptConfig(enabled=False, resume="never")
    elif not ckpt.enabled:
        folder_of_trials = str(_passed_on(Path(config.run_dir)))
        ckpt = dataclasses.replace(ckpt, enabled=True, dir=folder_of_trials, save_steps=None, save_secs=None, keep=1)
    return dataclasses.replace(
        config,
        action="search",  # the ranks then skip validation
        run_dir=str(folder),
        partition=PartitionConfig(name="fixed", num=search.partitions, cut=Cut.BY_BYTES.value),
        train=dataclasses.replace(config.train, steps=first + search.trial_steps, log_every=search.trial_steps),
        ckpt=ckpt,
        tracking=TrackingConfig(enabled=False),
        profile=ProfileConfig(name="off"),
    )


def _passed_on(run_dir: Path) -> Path:
    """Returns the folder for the trials' checkpoints, for a run that writes no checkpoints of its own."""
    return run_dir / record.FOLDER / "ckpt"


def _named(result: processes.RunResult, partitions: int, folder: Path) -> processes.RunResult:
    """Returns the result. If it contains a failure, adds the trial to the reason of the failure."""
    if result.failure is None:
        return result
    pieces = f"{partitions} partition{'' if partitions == 1 else 's'}"
    reason = f"{result.failure.reason} (in the trial with {pieces}, logs: {folder / 'logs'})"
    return dataclasses.replace(result, failure=dataclasses.replace(result.failure, reason=reason))
