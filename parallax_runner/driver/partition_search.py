"""`partition=search`: runs short trials as part of training to find the best number of shards for sparse variables."""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.file_state import drawn_from, state_of
from parallax_runner.driver import report
from parallax_runner.driver.make_plan import plan_run
from parallax_runner.driver.partition_results import SearchSummary, track
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.segments import Handler, Segments
from parallax_runner.errors import PlanError, Setting, TrainingError
from parallax_runner.files.cache import cache_root
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.cut import Cut
from parallax_runner.search import record
from parallax_runner.search.candidates import MOST_TRIALS, Range, next_partitions
from parallax_runner.search.extent import range_of
from parallax_runner.search.fit_curve import choose
from parallax_runner.search.trial import WARM_UP_STEPS, Choice, Trial
from parallax_runner.track.tracker import Tracker

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph

log = logging.getLogger(__name__)

QUEUE_RUNNERS = "queue_runners"  # tf.GraphKeys.QUEUE_RUNNERS


def planned(config: RunConfig, plan: Plan, single: SingleDeviceGraph) -> Plan:
    """Returns the plan with notes about the search. Raises PlanError if a search is impossible."""
    if config.partition.name != "search":
        return plan
    allowed, action = _range(config, plan), action_of(config)
    notes = []
    if allowed is None:
        if action.searches_only:
            raise PlanError("no sparse variable is on a server, so there is nothing to shard").about(
                Setting.of("action", config.action)
            )
        notes.append("partition=search has no effect: no sparse variable is on a server")
    elif config.model["_target_"] == frozen.SCRIPT and QUEUE_RUNNERS in single.meta_graph.collection_def:
        raise PlanError(
            "the script fills queues (tf.train.QueueRunner), which would close when the number of shards changes"
        ).about(
            Setting.of("partition", "search"),
            remedy="feed the batches or use tf.data, or choose partition=fixed",
        )
    elif action.explains_plan:
        notes.append(f"partition=search starts with {allowed.start} and tries {allowed.least} to {allowed.most} shards")
    return dataclasses.replace(plan, notes=(*plan.notes, *notes))


def is_due(config: RunConfig, plan: Plan) -> bool:
    """Returns whether this run must search for the number of shards."""
    may_search = config.partition.name == "search" and action_of(config).runs_steps
    return may_search and _range(config, plan) is not None


class PartitionSearch(Segments):
    """The search in one run: it chooses the next plan and collects the results of the trials.

    The trials and the choice are saved in the run's folder and in the user's cache. A later search for the same graph,
    data and cluster continues from them. With `action=search`, only an unfinished search is continued.
    """

    def __init__(self, prepared: PreparedRun, tracker: Tracker) -> None:
        config, run_dir, plan = prepared.config, prepared.run_dir, prepared.planned.plan
        self.steps = 0
        self.secs = 0.0
        self._prepared, self._config, self._run_dir, self._tracker = prepared, config, run_dir, tracker
        allowed = _range(config, plan)
        assert allowed is not None
        self._allowed = allowed
        self._made_for = _made_for(config, plan)
        self._paths = (record.in_run(run_dir), record.in_cache(cache_root(), self._made_for))
        self._by_rank: dict[int, Sequence[float]] = {}
        self.plan, self.partitions = plan, 0
        self._has_shown = self._was_tracked = self._has_counted = False
        self.trials: tuple[Trial, ...] = ()
        self.choice: Choice | None = None
        self._take_up()
        if self.choice is None:
            most = f"at most {MOST_TRIALS} trials, {config.partition.steps_per_trial} steps each"
            tell(f"{allowed.least} to {allowed.most} partitions, starting with {allowed.start}; {most}")

    @property
    def trial_steps(self) -> int:
        """The number of steps in one trial, including warm-up."""
        steps = self._config.partition.steps_per_trial
        assert steps is not None  # config/rules/partition.py
        return WARM_UP_STEPS + steps

    def next_plan(self) -> Plan:
        """Returns the plan for the next number of shards to try. If no number is left to try, chooses the best number
        and returns the plan for it."""
        if self.choice is None:
            number = next_partitions(self.trials, self._allowed)
            if number is None:
                self._settle()
        if self.choice is not None:
            number = self.choice.partitions
        assert number is not None
        if number != self.partitions:
            self.partitions = number
            self.plan = self._plan_for(number)
            plans.save(self.plan, self._run_dir / plans.FILE_NAME)
        if self.choice is not None and not self._has_shown:
            self._show(self.choice)
        return self.plan

    def begin_attempt(self, config: RunConfig, plan: Plan) -> tuple[RunConfig, Plan]:
        """Prepares an attempt: writes `plan.json` and `config.yaml`, and returns the configuration and the plan for the
        attempt."""
        del plan
        self._by_rank = {}
        plans.save(self.next_plan(), self._run_dir / plans.FILE_NAME)
        begun = with_partitions(config, self.partitions if self.choice is not None else config.partition.num)
        if action_of(config).searches_only:  # The run ends when the choice is made.
            steps = MOST_TRIALS * self.trial_steps + 1
            train = dataclasses.replace(begun.train, steps=steps, log_every=steps)
            begun = dataclasses.replace(begun, train=train)
        frozen.freeze(begun, self._run_dir)
        return begun, self.plan

    def handlers(self) -> Mapping[str, Handler]:
        return {"segment": self.on_segment, "recut": self.on_recut}

    def on_segment(self, rank: int, step: int, step_secs: Sequence[float]) -> dict[str, Any] | None:
        """Records a rank's step times in the segment that ends at `step`. Returns the command for all ranks once the
        last rank has reported, and None before that."""
        self._by_rank[rank] = step_secs
        if len(self._by_rank) < self.plan.workers:
            return None
        by_rank, self._by_rank = self._by_rank, {}
        if self.choice is None and all(by_rank.values()):
            self.take(Trial.of(self.partitions, by_rank))
            self._count(len(by_rank[0]), sum(max(secs) for secs in zip(*by_rank.values(), strict=False)))
        before = self.partitions
        plan = self.next_plan()
        return {
            "plan": None if self.partitions == before else plans.to_json(plan),
            "until": step + self.trial_steps if self.choice is None else None,
            "ends": self.choice is not None and action_of(self._config).searches_only,
        }

    def on_recut(self, rank: int, secs: float) -> None:
        """Adds the time that the ranks took to switch to another plan."""
        self._count(0, secs)
        log.info("search: resharded into %s in %.1f s", _counted(self.partitions), secs)

    def take(self, trial: Trial) -> None:
        """Records the measurement of a trial."""
        self.trials = (*self.trials, trial)
        times = f"{1000 * trial.secs:.4g} ms a step ± {1000 * trial.error_secs:.2g}"
        tell(f"{_counted(trial.partitions)}: {times}")
        self._keep()

    def last_plan(self, plan: Plan) -> Plan:
        del plan
        return self.plan

    def summary_fields(self) -> Mapping[str, Any]:
        found = SearchSummary.of(self.trials, self.choice)
        if self._has_counted:
            found = dataclasses.replace(found, partition_search_steps=self.steps, partition_search_secs=self.secs)
        return {"search": found}

    def finish(self, step: int) -> None:
        """Raises TrainingError if `action=search` has found no number, because a script ended too early."""
        if action_of(self._config).searches_only and self.choice is None:
            raise TrainingError(
                f"the script ends after {step} steps, before a number of shards is chosen; a search takes at most "
                f"{MOST_TRIALS} trials of {self.trial_steps} steps (partition.steps_per_trial)"
            ).about(Setting.of("action", self._config.action))

    def close(self) -> None:
        """Records the outcome of the search, even if the search was interrupted."""
        if not self._was_tracked:
            track(self.trials, self.choice, self._tracker, self._run_dir)
        if self.choice is None:
            kept = f"{len(self.trials)} trials are saved for a resumed run"
            tell(f"not finished: {kept}; a trial takes {self.trial_steps} steps")

    def _take_up(self) -> None:
        """Continues from the trials and the choice of an earlier search that is saved in this folder or in the
        cache."""
        for path in self._paths:
            found = record.load(self._made_for, path)
            if not found.trials or (found.choice is not None and action_of(self._config).searches_only):
                continue
            self.trials, self.choice = found.trials, found.choice
            where = self._run_dir if path == self._paths[0] else path
            if found.choice is None:
                known = ", ".join(str(trial.partitions) for trial in found.trials)
                tell(f"continuing with the trials of an earlier run, in {where}: {known}")
            else:
                tell(f"{_counted(found.choice.partitions)}, found by an earlier run, in {where}")
            self._was_tracked = found.choice is not None and path == self._paths[0]
            self._keep()
            return

    def _plan_for(self, number: int) -> Plan:
        config = with_partitions(self._config, number)
        planned = self._prepared.planned
        return plan_run(config, planned.single, measured=planned.measured)

    def _settle(self) -> None:
        choice = self.choice = choose(self.trials)
        time = f"{1000 * choice.secs:.4g} ms a step ± {1000 * choice.error_secs:.2g}"
        tell(f"chosen: {_counted(choice.partitions)}, {time}")
        self._keep()

    def _show(self, choice: Choice) -> None:
        self._has_shown = True
        self._tracker.log_params({"partition": {"num": choice.partitions}})
        frozen.freeze(with_partitions(self._config, choice.partitions), self._run_dir)
        report.show_plan(self.plan)

    def _keep(self) -> None:
        record.save(self.trials, self.choice, self._made_for, self._paths[0])
        try:
            record.save(self.trials, self.choice, self._made_for, self._paths[1])
        except OSError as error:  # the next run searches again
            log.warning("cannot cache the search: %s", error)

    def _count(self, steps: int, secs: float) -> None:
        self.steps, self.secs, self._has_counted = self.steps + steps, self.secs + secs, True


def with_partitions(config: RunConfig, partitions: int) -> RunConfig:
    """Returns the configuration with another number of shards."""
    partition = dataclasses.replace(config.partition, num=partitions, cut=Cut.BY_BYTES.value)
    return dataclasses.replace(config, partition=partition)


def _range(config: RunConfig, plan: Plan) -> Range | None:
    """Returns the smallest and largest number of shards to try, and the number to start with. Returns None if the plan
    shards no variable. Raises PlanError if a variable has too few rows."""
    assert config.partition.min is not None  # config/rules/partition.py
    return range_of(plan, least=config.partition.min, most=config.partition.max)


def _made_for(config: RunConfig, plan: Plan) -> dict[str, Any]:
    """Returns the key under which a choice is saved. A choice is valid only for the same graph, data, cluster,
    communication mode and search settings."""
    content = frozen.plain(config)
    asked = {key: value for key, value in content["partition"].items() if key not in ("num", "cut")}
    return {
        "fingerprint": plan.fingerprint,
        "data": drawn_from(frozen.written(config)["data"]),
        "files": state_of(content["data"]),
        "cluster": content["cluster"],
        "machine": [platform.node(), os.cpu_count()],
        "comm": content["comm"],
        "partition": asked,
    }


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


def tell(line: str) -> None:
    """Prints a line about the search on the terminal, and writes it to the driver's log."""
    log.info("search: %s", line)
    print(f"search: {line}", file=sys.stderr, flush=True)
