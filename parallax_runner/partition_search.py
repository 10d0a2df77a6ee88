"""`partition=search`: short runs of the same processes tell into how many pieces sparse variables are best cut."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from parallax_runner import report
from parallax_runner.config import frozen
from parallax_runner.errors import PlanError
from parallax_runner.launch import processes
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.recovery import Recovery
from parallax_runner.search import plot, record
from parallax_runner.search.candidates import Range
from parallax_runner.search.extent import range_of
from parallax_runner.search.search import search
from parallax_runner.search.trial import Choice, Trial
from parallax_runner.supervise import launch_spec
from parallax_runner.track.tracker import Tracker

log = logging.getLogger(__name__)

PLOTS = "plots"


@dataclass(frozen=True)
class Found:
    """What to train with. Where there is nothing to train, `ended` says how the search ended."""

    start: Recovery
    plan: Plan
    ended: processes.RunResult | None = None


class TrialEnded(Exception):
    """A trial that did not come to its end."""

    def __init__(self, result: processes.RunResult) -> None:
        self.result = result


def planned(config: DictConfig, plan: Plan) -> Plan:
    """The plan with what is to be said of the search before it. Raises PlanError where it cannot be made."""
    if config.partition.name != "search":
        return plan
    allowed = _range(config, plan)
    if allowed is None:
        if config.action == "search":
            raise PlanError("action=search: no sparse variable is on a server, so there is nothing to cut in pieces")
        note = "partition=search searches for nothing: no sparse variable is on a server"
    elif config.action == "plan":
        note = f"partition=search begins with {allowed.start} and tries {allowed.least} to {allowed.most} pieces"
    else:
        return plan
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def is_due(config: DictConfig, plan: Plan) -> bool:
    """Whether the number of pieces is to be found before the run."""
    return config.partition.name == "search" and config.action != "plan" and _range(config, plan) is not None


def find_partitions(
    start: Recovery,
    plan: Plan,
    make_plan: Callable[[DictConfig], Plan],
    tracker: Tracker,
    summary: dict[str, Any],
    interrupts: Interrupts,
) -> Found:
    """Measures trials, chooses, and leaves what is to be trained with: `config.yaml`, `plan.json`, the plan on the
    terminal. A choice that an earlier run in the folder made for the same graph and cluster is taken as it is, except
    under `action=search`. `summary` gets the trials, the curve and the choice."""
    config, run_dir = start.config, start.run_dir
    made_for = _made_for(config, plan)
    choice = None if config.action == "search" else record.load(made_for, run_dir)
    if choice is not None:
        _tell(f"{_counted(choice.partitions)}, as an earlier run in {run_dir} has found")
        summary |= _fields(choice.trials, choice)
    else:
        allowed = _range(config, plan)
        assert allowed is not None
        try:
            choice = _search(start, allowed, make_plan, tracker, summary, interrupts)
        except TrialEnded as trial:
            return Found(start, plan, trial.result)
        tracker.log_artifact(record.save(choice, made_for, run_dir), record.FOLDER)
    tracker.log_params({"partition": {"num": choice.partitions}})
    settled = _with_partitions(config, choice.partitions)
    frozen.freeze(settled, run_dir)
    plan = make_plan(settled)
    plans.save(plan, run_dir / "plan.json")
    report.show_plan(plan)
    ended = processes.RunResult("finished", 0) if config.action == "search" else None
    return Found(dataclasses.replace(start, config=settled), plan, ended)


def _search(
    start: Recovery,
    allowed: Range,
    make_plan: Callable[[DictConfig], Plan],
    tracker: Tracker,
    summary: dict[str, Any],
    interrupts: Interrupts,
) -> Choice:
    """The choice; trials are recorded also where one of them fails, or is interrupted. Raises TrialEnded."""
    steps = start.config.partition.steps_per_trial
    _tell(f"{allowed.least} to {allowed.most} partitions, from {allowed.start}, {steps} steps each")
    trials: list[Trial] = []
    choice = None

    def measure(partitions: int) -> Trial:
        trials.append(_run_trial(start, partitions, make_plan, interrupts))
        _tell(f"{_counted(partitions)}: {1000 * trials[-1].secs:.4g} ms a step")
        return trials[-1]

    try:
        choice = search(measure, allowed)
        expected = "" if choice.curve is None else f", {1000 * choice.secs:.4g} ms a step by the curve"
        _tell(f"chosen: {_counted(choice.partitions)}{expected}")
        return choice
    finally:
        summary |= _fields(trials, choice)
        _track(trials, choice, tracker, start.run_dir)


def _run_trial(
    start: Recovery, partitions: int, make_plan: Callable[[DictConfig], Plan], interrupts: Interrupts
) -> Trial:
    """Runs the plan's processes for some steps, in a folder of their own, from initial values; nothing is saved."""
    folder = start.run_dir / record.FOLDER / f"partitions_{partitions}"
    shutil.rmtree(folder, ignore_errors=True)  # an earlier search's logs
    config = _trial_config(start.config, partitions, folder)
    frozen.freeze(config, folder)
    plan = make_plan(config)
    plans.save(plan, folder / "plan.json")
    by_rank: dict[int, list[float]] = defaultdict(list)

    def on_message(message: processes.Message) -> None:
        if message.role == "worker" and message.kind == "progress":
            by_rank[message.index] += message.fields["step_secs"]

    result = processes.run(launch_spec(config, plan, folder), on_message=on_message, interrupts=interrupts)
    if result.status != "finished":
        raise TrialEnded(_named(result, partitions, folder))
    return Trial.of(partitions, by_rank)


def _named(result: processes.RunResult, partitions: int, folder: Path) -> processes.RunResult:
    """The failure with the trial that it happened in."""
    if result.failure is None:
        return result
    reason = f"{result.failure.reason} (in the trial of {_counted(partitions)}, logs: {folder / 'logs'})"
    return dataclasses.replace(result, failure=dataclasses.replace(result.failure, reason=reason))


def _trial_config(config: DictConfig, partitions: int, folder: Path) -> DictConfig:
    trial = _with_partitions(config, partitions)
    trial.action = "search"  # by which ranks know that nothing is to be validated
    trial.run_dir = str(folder)
    trial.train.steps = trial.train.log_every = config.partition.steps_per_trial
    trial.ckpt = {"enabled": False, "resume": "never"}
    trial.tracking = {"enabled": False}
    trial.profile = {"name": "off"}
    return trial


def _with_partitions(config: DictConfig, partitions: int) -> DictConfig:
    settled = DictConfig(OmegaConf.to_container(config, resolve=True))
    settled.partition.num = partitions
    return settled


def _range(config: DictConfig, plan: Plan) -> Range | None:
    """What may be tried; None where the plan cuts nothing. Raises PlanError where a variable has too few rows."""
    return range_of(plan, least=config.partition.min, most=config.partition.max)


def _made_for(config: DictConfig, plan: Plan) -> dict[str, Any]:
    """What a choice holds for: the same graph, cluster, way to communicate, and search."""
    content: Any = OmegaConf.to_container(config, resolve=True)
    asked = {key: value for key, value in content["partition"].items() if key != "num"}
    return {
        "fingerprint": plan.fingerprint,
        "cluster": content["cluster"],
        "comm": content["comm"],
        "partition": asked,
    }


def _fields(trials: Sequence[Trial], choice: Choice | None) -> dict[str, Any]:
    """The search in `summary.json`."""
    curve = None if choice is None else choice.curve
    return {
        "partition_candidates": [trial.partitions for trial in trials],
        "partition_step_ms": [1000 * trial.secs for trial in trials],
        "partition_choice": None if choice is None else choice.partitions,
        **{
            f"partition_{name}_ms": None if curve is None else 1000 * getattr(curve, name)
            for name in ("theta0", "theta1", "theta2")
        },
    }


def _track(trials: Sequence[Trial], choice: Choice | None, tracker: Tracker, run_dir: Path) -> None:
    """Times against pieces, as metrics whose step is the number of pieces, and as a plot."""
    if not trials:
        return
    curve = None if choice is None else choice.curve
    for trial in sorted(trials, key=lambda trial: trial.partitions):  # a tracker takes steps in ascending order only
        fitted = None if curve is None else 1000 * curve.secs(trial.partitions)
        times = {"search/step_ms": 1000 * trial.secs, "search/fitted_step_ms": fitted}
        tracker.log_metrics(trial.partitions, times)
    if choice is not None:
        tracker.log_metrics(0, {"search/partitions": choice.partitions})
    path = run_dir / PLOTS / plot.FILE_NAME
    try:
        plot.draw(trials, choice, path)
    except Exception as error:  # a font cache, a disk: the numbers are there
        log.warning("no plot of the search: %s: %s", type(error).__name__, error)
        return
    tracker.log_artifact(path, PLOTS)


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


def _tell(line: str) -> None:
    log.info("search: %s", line)
    print(f"search: {line}", file=sys.stderr, flush=True)
