"""Sums for metrics, over ranks and steps: each report counts once, at the right time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parallax_runner.track import metric_totals
from parallax_runner.track.metric_totals import MetricTotals


def mean(sums: Sequence[Any]) -> dict[str, float]:
    """Of a total, and a count."""
    total, count = sums
    return {"loss": float(total / count)}


def test_the_values_are_those_of_all_ranks() -> None:
    totals = MetricTotals(2, mean)
    totals.add(0, 10, [4.0, 1.0])
    assert totals.take_window() == {}  # rank 1 has yet to report
    totals.add(1, 10, [20.0, 3.0])
    assert totals.take_window() == {"loss": 6.0}  # and not 5.33, the mean of the ranks' means
    assert totals.take_window() == {}
    totals.add(0, 20, [1.0, 1.0])
    totals.add(0, 30, [100.0, 1.0])
    totals.add(1, 20, [2.0, 1.0])
    assert totals.take_window() == {"loss": 1.5}
    assert totals.take_epoch() == {"loss": 27 / 6}
    totals.add(1, 30, [50.0, 1.0])
    assert totals.take_epoch() == {"loss": 75.0}
    assert totals.take_epoch() == {}


def test_a_report_of_skipped_steps_alone_adds_nothing() -> None:
    totals = MetricTotals(2, mean)
    totals.add(0, 10, None)
    totals.add(1, 10, None)
    assert totals.take_window() == {}
    totals.add(0, 20, [4.0, 1.0])
    totals.add(1, 20, None)
    assert totals.take_window() == {"loss": 4.0}


def test_ranks_that_step_apart_are_all_counted() -> None:
    totals = MetricTotals(2, mean, waits_for_all=False)
    totals.add(0, 10, [4.0, 1.0])
    totals.add(0, 20, [6.0, 1.0])
    totals.add(1, 7, [2.0, 1.0])
    assert totals.take_epoch() == {"loss": 4.0}


def test_steps_that_come_again_count_once() -> None:
    totals = MetricTotals(2, mean)
    for step, total in ((10, 1.0), (20, 100.0)):
        for rank in (0, 1):
            totals.add(rank, step, [total, 1.0])
    totals.add(0, 30, [1000.0, 1.0])
    totals.restart(10)
    for rank in (0, 1):
        totals.add(rank, 20, [3.0, 1.0])
    assert totals.take_window() == {"loss": 3.0}
    assert totals.take_epoch() == {"loss": 2.0}


@pytest.mark.parametrize("most", [1, 2, 5])
def test_long_epochs_take_bounded_memory(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(metric_totals, "MAX_PARTS", most)
    totals = MetricTotals(1, mean)
    for step in range(1, 40):
        totals.add(0, step, [float(step), 1.0])
        assert len(totals._parts) <= most
    assert totals.take_epoch() == {"loss": 20.0}
    for step in range(1, 40):
        totals.add(0, step, [float(step), 1.0])
    totals.restart(20)
    found = totals.take_epoch()
    assert not found or found["loss"] <= 10.5  # of steps up to 20 alone
