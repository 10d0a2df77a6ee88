"""Combines the reports of a run's ranks: computes means over ranks, updates the display, records metrics and writes
`summary.json`."""

from __future__ import annotations

import json
import math
import statistics
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from parallax_runner.config.objective import VALIDATION_LOSS, Goal
from parallax_runner.files.plain import object_in
from parallax_runner.files.whole import write_whole
from parallax_runner.track.metric_totals import MetricTotals, Results
from parallax_runner.track.progress import ProgressDisplay, Standing, format_validation
from parallax_runner.track.tracker import Tracker
from parallax_runner.track.vocabularies import Vocabularies
from parallax_runner.train.growth import Reported
from parallax_runner.train.metric_sums import Sums

# Returns the metrics of groups of the validation after a step.
GroupValues = Callable[[int], dict[str, float]]
SUMMARY = "summary.json"
PERCENTILES = (50, 90, 99)
# The first steps include setup. These steps are included in the percentiles of their report but not in the percentiles
# of the run.
WARM_UP_STEPS = 5
VALIDATION = "validation"
MAX_BINS = 32  # maximum number of bins in the staleness histogram; each bin is a metric


class _Validated(NamedTuple):
    """What one rank has reported of a validation."""

    loss_sum: float
    examples: int
    sums: Sums
    left_out: int


@dataclass
class RunRecord:
    """The state of a run, computed from the reports of its `workers` ranks.

    `global_batch` is the number of examples per step, or None if only the script determines it. `words_per_example` is
    the number of words in each example, or None if examples have no words. `validation_metric` is the name for the
    exponential of the validation loss, or None if there is no such metric. `goal` defines the value that is used to
    compare validations. When a validation is complete, `on_validated` is called with the step and this value.
    `contributors` is the number of gradients per step if it is less than `workers`. In this case, the losses of ranks
    that do not contribute are not counted. `totals` adds up the metric sums of training steps, and `validation_results`
    turns the sums of a validation into metric values. Both are None if there are no metrics. `unknown_loss` is the
    reason why the losses in the reports are not the loss of the model, or None. If it is set, no loss is recorded.
    `knows_validation_loss` is False if the losses of validations are not recorded, because the model has none.
    `group_values` returns the metrics of groups of the validation after a step, which all ranks have completed. It is
    None if there are none. `part` is the part of the data that validations read; it begins the names of their results.
    """

    workers: int
    steps: int | None
    log_every: int
    global_batch: int | None
    words_per_example: int | None
    tracker: Tracker
    display: ProgressDisplay
    started_secs: float = field(default_factory=time.monotonic)
    startup_secs: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    last_step: int = 0
    validation_metric: str | None = None
    goal: Goal = VALIDATION_LOSS
    on_validated: Callable[[int, float], None] | None = None
    validation: dict[str, float] = field(default_factory=dict)
    contributors: int | None = None
    unknown_loss: str | None = None
    totals: MetricTotals | None = None
    validation_results: Results | None = None
    knows_validation_loss: bool = True
    group_values: GroupValues | None = None
    part: str = VALIDATION
    training: dict[str, float] = field(default_factory=dict)
    last_validation_metrics: dict[str, float] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)
    dropped: Counter[int] = field(default_factory=Counter)
    vocabularies: Vocabularies = field(default_factory=Vocabularies)
    _losses: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    _validations: dict[int, dict[int, _Validated]] = field(default_factory=lambda: defaultdict(dict))
    _has_told_left_out: bool = False
    _recent_step_secs: list[float] = field(default_factory=list)
    _step_secs: array[float] = field(default_factory=lambda: array("d"))
    _first_ranks_steps: int = 0

    def on_progress(
        self,
        rank: int,
        step: int,
        losses: list[float | None],
        step_secs: list[float],
        staleness: Sequence[int] = (),
        dropped: int = 0,
        metrics: Sequence[Any] = (),
        metric_rests: Sequence[Any] = (),
        metric_last: Sequence[Any] = (),
        vocabularies: Reported = MappingProxyType({}),
    ) -> None:
        """Processes one rank's report on the steps up to `step`. The report contains the losses of these steps, the
        seconds that each step took and, in asynchronous training, the staleness of each push (the number of pushes by
        other replicas since the pull). A loss is None if the step did not use this rank's gradient. `dropped` is the
        number of gradients that the rank computed but no step used. `metrics`, `metric_rests` and `metric_last` are the
        rank's metric sums over these steps (`Sums`), as nested lists. `vocabularies` are the rank's vocabularies that
        grow."""
        self.vocabularies.add(rank, step, vocabularies, workers=self.workers)
        self.staleness.update(staleness)
        self.dropped[rank] += dropped
        if self.totals is not None:
            self.totals.add(rank, step, Sums.of(metrics, metric_rests, metric_last))
        secs = math.fsum(step_secs)
        if self.startup_secs is None:
            self.startup_secs = time.monotonic() - self.started_secs - secs
        for offset, loss in enumerate(losses):
            if loss is not None:
                self._losses[step - len(losses) + 1 + offset][rank] = loss
        self._note_times(rank, step_secs)
        means = self._means_of_complete_steps()
        step = max(means, default=-1)
        if step <= self.last_step:
            return
        for number in means:
            del self._losses[number]
        self.last_step = step
        if self.unknown_loss is None:
            self.loss_first = means[min(means)] if self.loss_first is None else self.loss_first
            self.loss_last = means[step]
        steps_per_sec = len(losses) / secs if secs > 0 else None
        self._show(step, self.loss_last, steps_per_sec)

    def _means_of_complete_steps(self) -> dict[int, float]:
        """Returns the mean loss of each step for which all contributing ranks have reported, by step."""
        reports = self.contributors or self.workers
        complete = {number: by_rank for number, by_rank in self._losses.items() if len(by_rank) == reports}
        return {number: statistics.fmean(by_rank.values()) for number, by_rank in sorted(complete.items())}

    def _note_times(self, rank: int, step_secs: list[float]) -> None:
        self._recent_step_secs += step_secs
        if rank == 0:
            warm_up = max(0, WARM_UP_STEPS - self._first_ranks_steps)
            self._first_ranks_steps += len(step_secs)
            self._step_secs.extend(step_secs[warm_up:])

    def on_validation(
        self,
        rank: int,
        step: int,
        loss_sum: float,
        examples: int,
        metrics: Sequence[Any] = (),
        metric_rests: Sequence[Any] = (),
        metric_last: Sequence[Any] = (),
        left_out: int = 0,
    ) -> None:
        """Processes one rank's validation result after `step` steps: the sum of the losses of the rank's examples, the
        number of these examples, and the metric sums (`Sums`), as nested lists. `left_out` is the number of examples
        that the model cannot evaluate alone (docs/design/0106)."""
        by_rank = self._validations[step]
        by_rank[rank] = _Validated(loss_sum, examples, Sums.of(metrics, metric_rests, metric_last), left_out)
        if len(by_rank) < self.workers:
            return
        del self._validations[step]
        losses = [(one.loss_sum, one.examples) for one in by_rank.values()]
        result = validation_of(losses, self.validation_metric, self.part)
        all_left_out = sum(one.left_out for one in by_rank.values())
        self._tell_left_out(all_left_out)
        if not result:
            return
        if not self.knows_validation_loss:
            result = {}
        self.last_validation_metrics = self._metrics_of(step, Sums.total(one.sums for one in by_rank.values()))
        result |= named(self.part, self.last_validation_metrics)
        if all_left_out:
            result[f"{self.part}/left_out"] = float(all_left_out)
        self.validation = result
        self.tracker.log_metrics(step, result)
        self.display.say(format_validation(step, result))
        value = self.goal.in_validation(result)
        if self.on_validated is not None and value is not None:
            self.on_validated(step, value)

    def _tell_left_out(self, examples: int) -> None:
        """Explains once why validations leave examples out."""
        if not examples or self._has_told_left_out:
            return
        self._has_told_left_out = True
        self.display.say(
            f"{examples} examples are left out of each validation: the model accepts batches of one size only, and the "
            "value of a batch is no mean or sum over its examples. Set data.batch_size to a divisor of their number"
        )

    def _metrics_of(self, step: int, sums: Sums) -> dict[str, float]:
        """Returns the metrics of a validation from the sums over all ranks and from the rows that the ranks wrote."""
        found: dict[str, float] = {}
        if self.validation_results is not None and not sums.is_empty:
            found |= self.validation_results(sums.values, sums.last.means)
        if self.group_values is not None:
            found |= self.group_values(step)
        return found

    def on_alive(self, rank: int, step: int | None) -> None:
        """Processes a heartbeat. Between two reports, the chief's heartbeats move the bar to the chief's latest
        step."""
        if rank == 0 and step is not None:
            self.display.advance(step)

    def take_epoch(self) -> dict[str, float]:
        """Returns the values of all metrics, including the loss, over all ranks and all steps since the last call."""
        return {} if self.totals is None else self.totals.take_epoch()

    def restart(self, step: int) -> None:
        """Drops the steps that only some ranks have reported, because all ranks restart from `step`.

        Steps that run again are shown again, but the tracker records each step only once.
        """
        self.last_step = step
        if self.totals is not None:
            self.totals.restart(step)
        self._losses.clear()
        self.vocabularies.restart()
        self._validations.clear()
        self._recent_step_secs = []
        self._first_ranks_steps = 0
        self.display.restart()

    def resize(self, workers: int, servers: int, global_batch: int | None, group_values: GroupValues | None) -> None:
        """Continues on a cluster of another size. The other arguments are as in this class."""
        self.workers, self.global_batch, self.group_values = workers, global_batch, group_values
        if self.totals is not None:
            self.totals.workers = workers
        self.tracker.log_metrics(self.last_step, {"cluster/workers": float(workers), "cluster/servers": float(servers)})

    def end(self) -> None:
        """Records the percentiles of rank 0's step times, excluding the warm-up steps. Also records the staleness
        histogram and the counts of dropped gradients, if the run has them. Tells how full the vocabularies are."""
        for line in self.vocabularies.lines():
            self.display.say(line)
        self.tracker.log_metrics(self.last_step, percentiles_ms("time/run_step_ms", self._step_secs))
        if self.staleness:
            self.tracker.log_metrics(self.last_step, histogram_of(self.staleness))
        if self.contributors is not None:
            self.tracker.log_metrics(self.last_step, counts_of(self.dropped, self.workers))

    def _show(self, step: int, loss: float | None, steps_per_sec: float | None) -> None:
        rates = self.rates(steps_per_sec)
        times = percentiles_ms("time/step_ms", self._recent_step_secs)
        self._recent_step_secs = []
        metrics = {} if self.totals is None else named("train", self.totals.take_window())
        self.training |= metrics
        self.tracker.log_metrics(
            step,
            {
                "train/loss": loss,
                "throughput/steps_per_sec": steps_per_sec,
                "throughput/examples_per_sec": rates["examples_per_sec"],
                "throughput/words_per_sec": rates["words_per_sec"],
                **metrics,
                **times,
                **self.vocabularies.metrics(),
                # This is only the count up to now. The total at the end also includes the last reports of slow workers.
                **({} if self.contributors is None else {"train/dropped_gradients": float(self.dropped.total())}),
            },
        )
        shown = {name.removeprefix("train/"): value for name, value in metrics.items()}
        self.display.update(
            Standing(
                step=step,
                steps=self.steps,
                loss=loss,
                metrics=shown,
                steps_per_sec=steps_per_sec,
                vocabulary=self.vocabularies.brief(),
                **rates,
            )
        )

    def rates(self, steps_per_sec: float | None) -> dict[str, float | None]:
        """Returns examples and words per second over all ranks."""
        examples = None if steps_per_sec is None or self.global_batch is None else steps_per_sec * self.global_batch
        words = None if examples is None or self.words_per_example is None else examples * self.words_per_example
        return {"examples_per_sec": examples, "words_per_sec": words}


def named(phase: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns metrics under the names `PHASE/NAME`. Omits the loss, which is computed separately."""
    return {f"{phase}/{name}": value for name, value in metrics.items() if name != "loss"}


def validation_of(sums: Sequence[tuple[float, int]], metric: str | None, part: str = VALIDATION) -> dict[str, float]:
    """Computes the mean loss from the pairs (sum of losses, number of examples) of all ranks. Returns the mean loss as
    `PART/loss` and, if `metric` is given, the exponential of the mean loss under that name."""
    examples = sum(number for _, number in sums)
    if not examples:
        return {}
    mean = sum(loss_sum for loss_sum, _ in sums) / examples
    result = {f"{part}/loss": mean}
    if metric:
        # exp() of a number slightly above this limit overflows a double.
        result[f"{part}/{metric}"] = math.exp(min(mean, 700.0))
    return result


def histogram_of(staleness: Counter[int]) -> dict[str, float | None]:
    """Returns `staleness/mean` and `staleness/max` over all pushes, and `staleness/K`, the number of pushes with
    staleness K."""
    if not staleness:
        return {}
    pushes = staleness.total()
    shown = {f"staleness/{value}": float(staleness[value]) for value in range(min(max(staleness) + 1, MAX_BINS))}
    more = sum(count for value, count in staleness.items() if value >= MAX_BINS)
    return {
        "staleness/mean": sum(value * count for value, count in staleness.items()) / pushes,
        "staleness/max": float(max(staleness)),
        **shown,
        **({f"staleness/{MAX_BINS}_or_more": float(more)} if more else {}),
    }


def counts_of(dropped: Counter[int], workers: int) -> dict[str, float | None]:
    """Returns `dropped_gradients/total` and `dropped_gradients/worker_R`. These values count the gradients that were
    computed but not used in any step."""
    by_worker = {f"dropped_gradients/worker_{rank}": float(dropped[rank]) for rank in range(workers)}
    return {"dropped_gradients/total": float(dropped.total()), **by_worker}


def percentiles_ms(name: str, secs: Sequence[float]) -> dict[str, float | None]:
    """Returns percentiles as `NAME_p50` and so on, in milliseconds. The values are None if nothing was measured."""
    if not secs:
        return {f"{name}_p{percent}": None for percent in PERCENTILES}
    cuts = statistics.quantiles(secs, n=100, method="inclusive") if len(secs) > 1 else [secs[0]] * 99
    return {f"{name}_p{percent}": 1000 * cuts[percent - 1] for percent in PERCENTILES}


def write_summary(run_dir: Path, fields: Mapping[str, Any]) -> Path:
    """Writes `summary.json`, which contains one flat object. Non-finite numbers become null, since JSON has no NaN."""
    path = run_dir / SUMMARY
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fields.items()
    }
    write_whole(path, json.dumps(finite, indent=1, allow_nan=False) + "\n")
    return path


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Returns the summary in a run directory, or an empty dict if there is no summary or the summary cannot be read."""
    return object_in(run_dir / SUMMARY)
