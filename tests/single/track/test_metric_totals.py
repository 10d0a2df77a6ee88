"""Sums for metrics, over ranks and steps: each report counts once, at the right time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallax_runner.track.metric_totals import MetricTotals
from parallax_runner.train.metric_sums import NOTHING, Sums


def mean(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
    """Of a total, and a count."""
    total, count = sums
    return {"loss": float(total / count)}


def test_the_values_are_those_of_all_ranks() -> None:
    totals = MetricTotals(2, mean)
    totals.add(0, 10, Sums.of([4.0, 1.0]))
    assert totals.take_window() == {}  # rank 1 has yet to report
    totals.add(1, 10, Sums.of([20.0, 3.0]))
    assert totals.take_window() == {"loss": 6.0}  # and not 5.33, the mean of the ranks' means
    assert totals.take_window() == {}
    totals.add(0, 20, Sums.of([1.0, 1.0]))
    totals.add(0, 30, Sums.of([100.0, 1.0]))
    totals.add(1, 20, Sums.of([2.0, 1.0]))
    assert totals.take_window() == {"loss": 1.5}
    assert totals.take_epoch() == {"loss": 27 / 6}
    totals.add(1, 30, Sums.of([50.0, 1.0]))
    assert totals.take_epoch() == {"loss": 75.0}
    assert totals.take_epoch() == {}


def test_a_report_of_skipped_steps_alone_adds_nothing() -> None:
    totals = MetricTotals(2, mean)
    totals.add(0, 10, NOTHING)
    totals.add(1, 10, NOTHING)
    assert totals.take_window() == {}
    totals.add(0, 20, Sums.of([4.0, 1.0]))
    totals.add(1, 20, NOTHING)
    assert totals.take_window() == {"loss": 4.0}


def test_ranks_that_step_apart_are_all_counted() -> None:
    totals = MetricTotals(2, mean, waits_for_all=False)
    totals.add(0, 10, Sums.of([4.0, 1.0]))
    totals.add(0, 20, Sums.of([6.0, 1.0]))
    totals.add(1, 7, Sums.of([2.0, 1.0]))
    assert totals.take_epoch() == {"loss": 4.0}


def test_steps_that_come_again_count_once() -> None:
    """All ranks restart from the checkpoint of step 10, whose sidecar has the sums of the first 10 steps."""
    totals = MetricTotals(2, mean)
    for rank in (0, 1):
        totals.add(rank, 10, Sums.of([1.0, 1.0]))
    kept = totals.epoch
    for rank in (0, 1):
        totals.add(rank, 20, Sums.of([100.0, 1.0]))
    totals.add(0, 30, Sums.of([1000.0, 1.0]))
    totals.restart(10, kept)
    assert totals.last_step == 10
    for rank in (0, 1):
        totals.add(rank, 20, Sums.of([3.0, 1.0]))
    assert totals.take_window() == {"loss": 3.0}
    assert totals.take_epoch() == {"loss": 2.0}


def test_the_last_step_is_one_that_all_ranks_have_reported() -> None:
    totals = MetricTotals(2, mean, last_step=5)
    totals.add(1, 10, Sums.of([1.0, 1.0]))
    totals.add(1, 20, Sums.of([1.0, 1.0]))
    assert totals.last_step == 5
    totals.add(0, 10, Sums.of([1.0, 1.0]))
    assert totals.last_step == 10
    assert totals.take_epoch() == {"loss": 1.0}
