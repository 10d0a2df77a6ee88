"""One account of a run out of what its ranks report."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.track import run_record
from parallax_runner.track.metric_totals import MetricTotals
from parallax_runner.track.progress import ProgressDisplay, Standing
from parallax_runner.track.run_record import RunRecord, validation_of, write_summary
from parallax_runner.track.tracker import NoTracker


def even(secs: float, losses: list[float]) -> list[float]:
    """Seconds of each step, all alike."""
    return [secs / len(losses)] * len(losses)


class Noting(NoTracker):
    """Keeps the metrics."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float | None]]] = []

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self.metrics.append((step, dict(metrics)))


class Showing(ProgressDisplay):
    """Keeps what it is to show."""

    def __init__(self) -> None:
        super().__init__(steps=100, log_every=1, stream=io.StringIO())
        self.standings: list[Standing] = []
        self.restarts = 0
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def restart(self) -> None:
        self.restarts += 1

    def update(self, standing: Standing) -> None:
        self.standings.append(standing)


class Account:
    """A record with what went into tracker and display."""

    def __init__(self, *, workers: int = 2, words: int | None = 20, contributors: int | None = None) -> None:
        self.tracker, self.display = Noting(), Showing()
        self.record = RunRecord(
            workers=workers,
            contributors=contributors,
            steps=100,
            log_every=10,
            global_batch=8,
            words_per_example=words,
            tracker=self.tracker,
            display=self.display,
        )

    @property
    def shown(self) -> list[tuple[int, float | None]]:
        return [(step, metrics["train/loss"]) for step, metrics in self.tracker.metrics]


def test_the_loss_is_the_mean_over_ranks() -> None:
    account = Account()
    account.record.on_progress(0, 1, [4.0], even(1.0, [4.0]))
    assert account.shown == []  # One rank has yet to report.
    account.record.on_progress(1, 1, [2.0], even(1.0, [2.0]))
    assert account.shown == [(1, 3.0)]
    assert (account.record.loss_first, account.record.loss_last, account.record.last_step) == (3.0, 3.0, 1)


def test_first_and_last_losses() -> None:
    account = Account()
    for rank, losses in ((0, [4.0, 3.0, 1.0]), (1, [8.0, 5.0, 2.0])):
        account.record.on_progress(rank, 3, losses, even(1.5, losses))
    assert (account.record.loss_first, account.record.loss_last, account.record.last_step) == (6.0, 1.5, 3)
    for rank in (1, 0):
        account.record.on_progress(rank, 5, [1.0, 0.5], even(1.0, [1.0, 0.5]))
    assert (account.record.loss_first, account.record.loss_last, account.record.last_step) == (6.0, 0.5, 5)
    assert account.shown == [(3, 1.5), (5, 0.5)]


def test_another_size_is_recorded_and_all_its_ranks_are_waited_for() -> None:
    account = Account()
    for rank in (0, 1):
        account.record.on_progress(rank, 1, [2.0], even(1.0, [2.0]))
    account.record.restart(1)
    account.record.resize(3, 1, 12, None)
    assert account.tracker.metrics.pop() == (1, {"cluster/workers": 3.0, "cluster/servers": 1.0})
    for rank, loss in enumerate((3.0, 6.0, 9.0)):
        assert account.shown == [(1, 2.0)]
        account.record.on_progress(rank, 2, [loss], even(1.0, [loss]))
    assert account.shown == [(1, 2.0), (2, 6.0)]


def test_a_rank_may_run_ahead() -> None:
    account = Account(workers=3)
    account.record.on_progress(0, 1, [3.0], even(1.0, [3.0]))
    account.record.on_progress(0, 3, [2.0, 1.0], even(1.0, [2.0, 1.0]))
    account.record.on_progress(2, 1, [6.0], even(1.0, [6.0]))
    account.record.on_progress(2, 3, [2.0, 4.0], even(1.0, [2.0, 4.0]))
    assert account.shown == []
    account.record.on_progress(1, 1, [9.0], even(1.0, [9.0]))
    assert account.shown == [(1, 6.0)]
    account.record.on_progress(1, 3, [2.0, 7.0], even(1.0, [2.0, 7.0]))
    assert account.shown == [(1, 6.0), (3, 4.0)]
    assert (account.record.loss_first, account.record.loss_last, account.record.last_step) == (6.0, 4.0, 3)


def test_reports_of_different_lengths() -> None:
    """A step is accounted for once all ranks have reported it, wherever their reports end."""
    account = Account()
    account.record.on_progress(0, 2, [1.0, 2.0], even(1.0, [1.0, 2.0]))
    account.record.on_progress(1, 3, [3.0, 4.0, 5.0], even(1.0, [3.0, 4.0, 5.0]))
    assert account.record.loss_first in (None, 2.0)
    account.record.on_progress(0, 3, [7.0], even(1.0, [7.0]))
    assert (account.record.loss_first, account.record.loss_last, account.record.last_step) == (2.0, 6.0, 3)


def test_rates() -> None:
    account = Account()
    for rank in (0, 1):
        account.record.on_progress(rank, 10, [1.0] * 10, even(4.0, [1.0] * 10))
    ((_, metrics),) = account.tracker.metrics
    assert metrics == {
        "train/loss": 1.0,
        "throughput/steps_per_sec": 2.5,
        "throughput/examples_per_sec": 20.0,
        "throughput/words_per_sec": 400.0,
        "time/step_ms_p50": 400.0,
        "time/step_ms_p90": 400.0,
        "time/step_ms_p99": 400.0,
    }
    (standing,) = account.display.standings
    assert (standing.step, standing.steps, standing.loss) == (10, 100, 1.0)
    assert (standing.steps_per_sec, standing.examples_per_sec, standing.words_per_sec) == (2.5, 20.0, 400.0)


def test_data_without_words() -> None:
    account = Account(words=None)
    assert account.record.rates(2.0) == {"examples_per_sec": 16.0, "words_per_sec": None}
    assert account.record.rates(None) == {"examples_per_sec": None, "words_per_sec": None}


def test_no_time_no_rate() -> None:
    account = Account(workers=1)
    account.record.on_progress(0, 1, [1.0], even(0.0, [1.0]))
    assert account.tracker.metrics[0][1]["throughput/steps_per_sec"] is None


def test_starting_up_ends_where_the_first_step_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account()
    account.record.started_secs = 100.0
    now = [130.0]
    monkeypatch.setattr(run_record.time, "monotonic", lambda: now[0])
    account.record.on_progress(1, 1, [1.0], even(2.0, [1.0]))
    assert account.record.startup_secs == pytest.approx(28.0)
    now[0] = 200.0
    account.record.on_progress(0, 1, [1.0], even(2.0, [1.0]))
    assert account.record.startup_secs == pytest.approx(28.0)


def test_memory_does_not_grow_with_the_run() -> None:
    account = Account()
    for step in range(1, 200):
        for rank in (0, 1):
            account.record.on_progress(rank, step, [1.0], even(1.0, [1.0]))
    assert len(account.record._losses) <= 1


def test_a_loss_that_is_no_number_stays_one() -> None:
    account = Account()
    account.record.on_progress(0, 1, [math.nan], even(1.0, [math.nan]))
    account.record.on_progress(1, 1, [2.0], even(1.0, [2.0]))
    assert account.record.loss_last is not None
    assert math.isnan(account.record.loss_last)


# Validation.


def test_the_validation_loss_is_over_all_batches_of_all_ranks() -> None:
    found = validation_of([(6.0, 2), (3.0, 1), (0.0, 0)], "perplexity")
    assert found == {"validation/loss": 3.0, "validation/perplexity": pytest.approx(math.exp(3.0))}


def test_a_metric_without_a_name_is_left_out() -> None:
    assert validation_of([(6.0, 2)], None) == {"validation/loss": 3.0}


def test_without_validation_there_is_nothing() -> None:
    assert validation_of([(0.0, 0)], "perplexity") == {}
    assert validation_of([], None) == {}


def test_a_hopeless_model_has_a_finite_perplexity() -> None:
    assert math.isfinite(validation_of([(5000.0, 1)], "perplexity")["validation/perplexity"])


def test_a_model_that_diverged_is_not_given_a_good_result() -> None:
    found = validation_of([(math.nan, 1)], "perplexity")
    assert math.isnan(found["validation/loss"])
    assert math.isnan(found["validation/perplexity"]) or found["validation/perplexity"] > 1e300


# The summary.


def test_the_summary_is_one_flat_object(tmp_path: Path) -> None:
    fields = {"status": "finished", "steps": 200, "loss_last": 1.25, "words_per_sec": None}
    path = write_summary(tmp_path, fields)
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text()) == fields
    assert path.read_text().endswith("}\n")
    assert json.loads(write_summary(tmp_path, fields | {"steps": 300}).read_text())["steps"] == 300


def test_the_summary_of_a_run_that_diverged_is_json(tmp_path: Path) -> None:
    """NaN is no JSON: jq and other languages refuse the file."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = write_summary(tmp_path, {"loss_last": math.nan}).read_text()
    assert json.loads(text, parse_constant=refuse) == {"loss_last": None}


# Times of steps.


def test_percentiles_are_of_the_steps_since_the_report_before() -> None:
    account = Account(workers=1)
    account.record.on_progress(0, 3, [1.0, 1.0, 1.0], [0.1, 0.2, 0.9])
    account.record.on_progress(0, 4, [1.0], [0.5])
    (_, first), (_, second) = account.tracker.metrics
    assert first["time/step_ms_p50"] == pytest.approx(200.0)
    assert 200.0 < first["time/step_ms_p90"] < first["time/step_ms_p99"] < 900.0
    assert second["time/step_ms_p50"] == second["time/step_ms_p99"] == pytest.approx(500.0)


def test_percentiles_of_the_run_leave_out_the_first_steps() -> None:
    account = Account(workers=1)
    account.record.on_progress(0, 4, [1.0] * 4, [9.0] * 4)
    account.record.on_progress(0, 8, [1.0] * 4, [9.0, 0.1, 0.1, 0.1])
    account.record.end()
    step, metrics = account.tracker.metrics[-1]
    assert step == 8
    assert metrics["time/run_step_ms_p99"] == pytest.approx(100.0)
    Account().record.end()  # nothing was measured, and nothing fails


# Validation during training.


def test_validation_waits_for_all_ranks() -> None:
    account = Account()
    seen: list[tuple[int, float]] = []
    account.record.validation_metric = "perplexity"
    account.record.on_validated = lambda step, loss: seen.append((step, loss))
    account.record.on_validation(0, 10, 6.0, 2)
    account.record.on_validation(0, 20, 2.0, 1)
    assert account.tracker.metrics == []
    account.record.on_validation(1, 10, 3.0, 1)
    account.record.on_validation(1, 20, 1.0, 1)
    first, second = account.tracker.metrics
    assert first == (10, {"validation/loss": 3.0, "validation/perplexity": pytest.approx(math.exp(3.0))})
    assert second[0] == 20
    assert seen == [(10, 3.0), (20, 1.5)]
    assert account.display.lines == [
        "validation after step 10: loss 3, perplexity 20.09",
        "validation after step 20: loss 1.5, perplexity 4.482",
    ]
    assert account.record.validation["validation/loss"] == 1.5


def test_validation_without_batches_is_none() -> None:
    account = Account(workers=1)
    account.record.on_validation(0, 10, 0.0, 0)
    assert account.tracker.metrics == []
    assert account.record.validation == {}


def test_examples_that_are_left_out_are_told_once_and_counted() -> None:
    account = Account()
    for step in (10, 20):
        account.record.on_validation(0, step, 2.0, 2, left_out=3)
        account.record.on_validation(1, step, 2.0, 2, left_out=1)
    said = [line for line in account.display.lines if line.startswith("4 examples are left out of each validation: ")]
    assert len(said) == 1
    assert account.tracker.metrics[-1] == (20, {"validation/loss": 1.0, "validation/left_out": 4.0})
    alone = Account(workers=1)
    alone.record.on_validation(0, 10, 0.0, 0, left_out=3)
    assert [line.partition(":")[0] for line in alone.display.lines] == ["3 examples are left out of each validation"]
    assert alone.tracker.metrics == []


def mean_of(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
    """A loss and a metric of a total and a count."""
    mean = float(sums[0] / sums[1])
    return {"loss": mean, "accuracy": mean / 10}


def with_metrics() -> Account:
    account = Account()
    account.record.totals = MetricTotals(2, mean_of)
    account.record.validation_results = mean_of
    return account


def test_metrics_of_all_ranks_are_shown_with_the_loss_of_the_step() -> None:
    account = with_metrics()
    account.record.on_progress(0, 2, [1.0, 4.0], [0.1, 0.1], metrics=[5.0, 2.0])
    account.record.on_progress(1, 2, [3.0, 6.0], [0.1, 0.1], metrics=[15.0, 3.0])
    ((step, metrics),) = account.tracker.metrics
    assert step == 2
    assert (metrics["train/loss"], metrics["train/accuracy"]) == (5.0, 0.4)
    assert account.display.standings[-1].metrics == {"accuracy": 0.4}
    assert account.record.training == {"train/accuracy": 0.4}
    for rank in (0, 1):
        account.record.on_progress(rank, 3, [1.0], [0.1], metrics=[0.0, 5.0])
    assert account.record.training == {"train/accuracy": 0.0}
    assert account.record.take_epoch() == {"loss": 20 / 15, "accuracy": 2 / 15}
    assert account.record.take_epoch() == {}


def test_metrics_of_a_validation_are_those_of_all_its_examples() -> None:
    account = with_metrics()
    account.record.on_validation(0, 10, 8.0, 2, metrics=[20.0, 2.0])
    account.record.on_validation(1, 10, 1.0, 1, metrics=[10.0, 1.0])
    expected = {"validation/loss": 3.0, "validation/accuracy": 1.0}
    assert account.tracker.metrics == [(10, expected)]
    assert account.record.validation == expected
    assert account.record.last_validation_metrics == {"loss": 10.0, "accuracy": 1.0}
    # A rank that had no batch has no sums.
    account.record.on_validation(0, 20, 8.0, 2, metrics=[40.0, 2.0])
    account.record.on_validation(1, 20, 0.0, 0)
    assert account.record.last_validation_metrics == {"loss": 20.0, "accuracy": 2.0}


def last_of(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
    return {"loss": last[0]}


def test_values_of_a_step_are_means_of_the_last_step_that_all_ranks_have_reported() -> None:
    account = Account()
    account.record.totals = MetricTotals(2, last_of)
    account.record.on_progress(0, 2, [1.0, 1.0], [0.1, 0.1], metric_last=[2, 1, [5.0]])
    account.record.on_progress(1, 2, [1.0, 1.0], [0.1, 0.1], metric_last=[2, 1, [7.0]])
    account.record.on_progress(0, 3, [1.0], [0.1], metric_last=[3, 1, [1.0]])
    account.record.on_progress(1, 3, [1.0], [0.1], metric_last=[3, 1, [2.0]])
    assert account.record.take_epoch() == {"loss": 1.5}
    assert account.record.take_epoch() == {}


def test_a_validation_without_a_loss_has_the_values_of_its_last_batches() -> None:
    account = Account()
    account.record.validation_results, account.record.knows_validation_loss = last_of, False
    account.record.on_validation(0, 10, math.nan, 6, metric_last=[2, 2, [8.0]])
    account.record.on_validation(1, 10, math.nan, 4, metric_last=[1, 4, [400.0]])  # it had no batch in the last round
    assert account.record.last_validation_metrics == {"loss": 4.0}
    assert account.record.validation == {}


def test_a_restart_forgets_steps_that_only_some_ranks_have_reported() -> None:
    account = Account()
    for rank in (0, 1):
        account.record.on_progress(rank, 1, [2.0], [0.1])
    account.record.on_progress(0, 4, [1.0, 1.0, 1.0], [0.1] * 3)
    account.record.on_validation(0, 4, 1.0, 1)
    account.record.restart(1)
    assert account.display.restarts == 1
    for rank in (0, 1):
        account.record.on_progress(rank, 3, [5.0, 7.0], [0.1] * 2)
    assert account.shown == [(1, 2.0), (3, 7.0)]
    account.record.on_validation(1, 4, 3.0, 1)
    assert account.record.validation == {}  # the other rank's was of another try


def test_staleness_of_all_ranks_is_a_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "MAX_BINS", 3)
    account = Account()
    for rank, staleness in ((0, [0, 0, 1]), (1, [1, 3, 7])):
        account.record.on_progress(rank, 3, [1.0] * 3, even(1.0, [1.0] * 3), staleness=staleness)
    account.record.end()
    assert account.tracker.metrics[-1] == (
        3,
        {
            "staleness/mean": 2.0,
            "staleness/max": 7.0,
            "staleness/0": 2.0,
            "staleness/1": 2.0,
            "staleness/2": 0.0,
            "staleness/3_or_more": 2.0,
        },
    )


def test_synchronous_training_has_no_staleness() -> None:
    assert run_record.histogram_of(Counter()) == {}


def test_with_backup_workers_the_loss_is_the_mean_over_those_in_the_step() -> None:
    account = Account(workers=3, contributors=2)
    account.record.on_progress(0, 1, [1.0], [0.1], dropped=0)
    account.record.on_progress(1, 1, [3.0], [0.1], dropped=0)
    account.record.on_progress(0, 4, [1.0, 2.0, 4.0], [0.1] * 3, dropped=0)
    # Late with step 2, and told only of step 4; that one is complete without it.
    account.record.on_progress(2, 4, [None, None, 9.0], [0.1] * 3, dropped=1)
    # It is at step 5 when it reports, which is not complete yet.
    account.record.on_progress(1, 5, [5.0, 2.0, None, 7.0], [0.1] * 4, dropped=1)
    assert account.shown == [(1, 2.0), (4, 6.5)]
    account.record.end()
    counts = {f"dropped_gradients/worker_{rank}": float(rank > 0) for rank in range(3)}
    assert account.tracker.metrics[-1] == (4, {"dropped_gradients/total": 2.0} | counts)
    so_far = [metrics["train/dropped_gradients"] for _, metrics in account.tracker.metrics if "train/loss" in metrics]
    assert so_far == [0.0, 1.0]


def test_without_backup_workers_nothing_is_dropped() -> None:
    account = Account()
    for rank in (0, 1):
        account.record.on_progress(rank, 1, [1.0], [0.1])
    account.record.end()
    keys = {key for _, metrics in account.tracker.metrics for key in metrics}
    assert "train/loss" in keys
    assert not [key for key in keys if "dropped" in key]


def test_a_loss_that_nobody_knows_is_not_the_loss_that_is_not_a_number() -> None:
    for reason, shown in ((None, math.nan), ("the script has several losses", None)):
        account = Account()
        account.record.unknown_loss = reason
        for rank in range(2):
            account.record.on_progress(rank, 2, [math.nan, math.nan], even(1.0, [0.0, 0.0]))
        found = (account.record.loss_first, account.record.loss_last, account.display.standings[-1].loss)
        assert account.record.last_step == 2
        assert [str(loss) for loss in found] == 3 * [str(shown)]
        assert str(account.tracker.metrics[-1][1]["train/loss"]) == str(shown)
