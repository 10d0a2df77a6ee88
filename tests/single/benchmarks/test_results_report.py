"""The table of the results: differences after the same step, and times in the same round."""

from __future__ import annotations

import math

import pytest

from benchmarks.results.curves import Curve, Point, difference_from
from benchmarks.results.report import rows_of, sentences


def curve(mode: str, number: int, values: tuple[float, ...], secs: float) -> Curve:
    """A curve with a point every ten steps, which ends after `secs`."""
    points = tuple(Point(10 * place, secs * place / len(values), value) for place, value in enumerate(values, 1))
    return Curve(mode, number, points, 100.0, 0.5 + number)


CURVES = [
    curve("mpi", 0, (2.0, 1.0), 10.0),
    curve("ps", 0, (2.0, 1.1), 30.0),
    curve("mpi", 1, (2.0, 1.0), 20.0),
    curve("ps", 1, (2.2, 1.0), 20.0),
]


def test_a_difference_is_relative_and_the_largest_of_all_rounds() -> None:
    assert difference_from(CURVES[0], [CURVES[1], CURVES[3]]) == pytest.approx(0.1)
    assert difference_from(CURVES[0], [CURVES[2]]) == 0.0


def test_a_difference_from_zero_and_a_missing_step_are_not_left_out() -> None:
    zero = curve("mpi", 0, (0.0, 1.0), 10.0)
    assert difference_from(zero, [zero]) == 0.0
    assert difference_from(zero, [CURVES[0]]) == math.inf
    with pytest.raises(ValueError, match=r"mpi, round 0: expected the steps \[10, 20\]"):
        difference_from(CURVES[0], [curve("mpi", 0, (2.0,), 10.0)])


def test_times_are_compared_within_a_round() -> None:
    rows = rows_of(CURVES, "RMSE")
    mpi, ps = (dict(zip(rows.head, row, strict=True)) for row in rows.body)
    assert (mpi["mode"], ps["mode"]) == ("mpi", "ps")
    assert ps["time / mpi"] == "2.00 (1.00 – 3.00)"
    assert (mpi["seconds"], ps["seconds"]) == ("15", "25")
    assert ps["RMSE after 20 steps"] == "1.1000"
    assert ps["largest difference from mpi"] == "1.0e-01"


def test_the_sentences_tell_how_busy_the_machine_was() -> None:
    assert sentences({"train_rows": 80000}, CURVES)[-1] == "Load averages before the runs: 0.5 to 1.5."
