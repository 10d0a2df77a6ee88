"""Trials of `partition=search` as runs of their own, where the plan cannot change while processes live.

Without synchronisation, or with backup workers, no moment is between two steps of all ranks: then each trial begins
from the checkpoint that the one before has left, and the training from the last one's. A script's steps, and those that
`action=verify` repeats, are counted by others: there trials begin from initial values, and are thrown away.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import defaultdict
from pathlib import Path

from omegaconf import DictConfig

from parallax_runner.config import frozen
from parallax_runner.launch import processes
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.partition_search import PartitionSearch, with_partitions
from parallax_runner.plan import plan as plans
from parallax_runner.recovery import Recovery, step_of
from parallax_runner.search import record
from parallax_runner.search.trial import Trial
from parallax_runner.supervise import launch_spec
from parallax_runner.train.checkpoint_start import find_start


def search_apart(
    search: PartitionSearch, start: Recovery, interrupts: Interrupts
) -> tuple[Recovery, processes.RunResult | None]:
    """Makes trials until the choice is made; returns what to train from, and how the search ended, if it is all that
    was to be done, or failed."""
    config = start.config
    goes_on = config.action == "train" and config.model["_target_"] != frozen.SCRIPT
    while True:
        search.next_plan()
        last = config.train.steps is not None and goes_on and step_of(config) >= config.train.steps
        if search.choice is not None or last:
            break
        folder = start.run_dir / record.FOLDER / f"partitions_{search.partitions}"
        trial = _trial_config(config, search, folder, goes_on)
        result, steps = _run_trial(trial, search, interrupts)
        if result.status != "finished":
            return start, _named(result, search.partitions, folder)
        search.take(steps)
        if goes_on:
            config = with_partitions(config, config.partition.num)
            config.ckpt.resume = str(find_start("auto", Path(trial.ckpt.dir)).prefix)
    settled = search.begin(config)
    ended = processes.RunResult("finished", 0) if config.action == "search" else None
    return dataclasses.replace(start, config=settled), ended


def _run_trial(
    config: DictConfig, search: PartitionSearch, interrupts: Interrupts
) -> tuple[processes.RunResult, Trial]:
    folder = Path(config.run_dir)
    shutil.rmtree(folder, ignore_errors=True)  # an earlier search's logs
    frozen.freeze(config, folder)
    plans.save(search.plan, folder / plans.FILE_NAME)
    by_rank: dict[int, list[float]] = defaultdict(list)

    def on_message(message: processes.Message) -> None:
        if message.role == "worker" and message.kind == "progress":
            by_rank[message.index] += message.fields["step_secs"]

    result = processes.run(launch_spec(config, search.plan, folder), on_message=on_message, interrupts=interrupts)
    return result, Trial.of(search.partitions, by_rank)


def _trial_config(config: DictConfig, search: PartitionSearch, folder: Path, goes_on: bool) -> DictConfig:
    trial = with_partitions(config, search.partitions)
    trial.action = "search"  # by which ranks know that nothing is to be validated
    trial.run_dir = str(folder)
    trial.partition = {"name": "fixed", "num": search.partitions}
    first = step_of(config) if goes_on else 0
    steps = first + search.trial_steps
    trial.train.steps = min(steps, config.train.steps or steps) if goes_on else steps
    trial.train.log_every = search.trial_steps
    kept = {"enabled": True, "dir": str(folder.parent / "ckpt"), "keep": 1, "resume": config.ckpt.resume}
    trial.ckpt = kept if goes_on else {"enabled": False, "resume": "never"}
    trial.tracking = {"enabled": False}
    trial.profile = {"name": "off"}
    return trial


def _named(result: processes.RunResult, partitions: int, folder: Path) -> processes.RunResult:
    """The failure with the trial that it happened in."""
    if result.failure is None:
        return result
    pieces = f"{partitions} partition{'' if partitions == 1 else 's'}"
    reason = f"{result.failure.reason} (in the trial of {pieces}, logs: {folder / 'logs'})"
    return dataclasses.replace(result, failure=dataclasses.replace(result.failure, reason=reason))
