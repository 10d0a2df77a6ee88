"""When a training ends because its validations find nothing better."""

from __future__ import annotations

import math

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.objective import Goal
from parallax_runner.driver.patience import Patience, epochs_of
from parallax_runner.track.progress import ProgressDisplay
from parallax_runner.track.run_record import RunRecord
from parallax_runner.track.tracker import NoTracker


def record(workers: int = 1) -> RunRecord:
    display = ProgressDisplay(steps=9, log_every=1)
    goal = Goal("auc", "auc", "maximize")
    return RunRecord(workers, 9, 1, 8, None, NoTracker(), display, goal=goal)


def ends_after(values: list[float | None], most: int) -> int | None:
    """The number of validations after which it ends; None: it goes on."""
    patience = Patience(record(), most)
    for number, value in enumerate(values):
        patience.record.validation = {} if value is None else {"validation/auc": value}
        patience.begin(number)
        patience.end(number, number + 1)
        if patience.stops:
            return number + 1
    return None


@pytest.mark.parametrize(
    ("values", "most", "expected"),
    [
        ([0.5, 0.6, 0.6, 0.55], 2, 4),
        ([0.5, 0.6, 0.6, 0.55], 3, None),
        ([0.5, 0.4, 0.6, 0.5], 2, None),
        ([0.5, math.nan], 1, 2),
        ([math.nan, None, 0.1], 3, None),
        ([0.5, 0.4], 1, 2),
    ],
)
def test_so_many_in_a_row(values: list[float | None], most: int, expected: int | None) -> None:
    assert ends_after(values, most) == expected


def test_all_ranks_are_told_to_end() -> None:
    config = {"action": "train", "train": {"patience": 1, "validate_steps": 3}}
    make = epochs_of(from_plain(config))
    assert make is not None and epochs_of(from_plain(config | {"action": "verify"})) is None
    found = record(workers=2)
    epochs = make(found, None)

    def order(step: int) -> dict[str, object] | None:
        assert epochs.on_segment(0, step, []) is None
        return epochs.on_segment(1, step, [])

    assert order(0) == {"plan": None, "until": 3, "is_last": False, "ends": False, "learning_rates": {}}
    found.validation = {"validation/auc": 0.6}
    assert order(3) == {"plan": None, "until": 6, "is_last": False, "ends": False, "learning_rates": {}}
    found.validation = {"validation/auc": 0.5}
    told = order(6)
    assert told is not None and told["ends"]
