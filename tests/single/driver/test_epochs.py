"""Epochs end when all ranks have come, once each, and an order says how all go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from parallax_runner.driver.epochs import Epochs


@dataclass
class Calls:
    stops: bool = False
    learning_rates: dict[str, float] = field(default_factory=dict)
    stops_after: int | None = None
    stops_before: int | None = None
    seen: list[str] = field(default_factory=list)
    steps: int = 0

    def begin(self, epoch: int) -> None:
        self.seen.append(f"begin {epoch}")
        self.stops = epoch == self.stops_before

    def end(self, epoch: int, step: int) -> None:
        self.seen.append(f"end {epoch}")
        self.steps = step
        self.learning_rates = {"rate": 0.5 / (epoch + 1)}
        self.stops = epoch == self.stops_after


def order(epochs: Epochs, step: int) -> dict[str, object] | None:
    assert epochs.on_segment(1, step, []) is None
    return epochs.on_segment(0, step, [])


def goes_on(*, until: int, rate: float | None) -> dict[str, object]:
    rates = {} if rate is None else {"rate": rate}
    return {"plan": None, "until": until, "is_last": False, "ends": False, "learning_rates": rates}


def test_each_epoch_is_begun_and_ended_once() -> None:
    calls = Calls()
    epochs = Epochs(steps=4, calls=calls, workers=2, first=3)
    assert order(epochs, 0) == goes_on(until=4, rate=None)
    assert order(epochs, 4) == goes_on(until=8, rate=0.125)
    epochs.finish(8)
    assert calls.seen == ["begin 3", "end 3", "begin 4", "end 4"]


def test_all_ranks_end_where_a_callback_stops() -> None:
    calls = Calls(stops_after=0)
    epochs = Epochs(steps=4, calls=calls, workers=2)
    order(epochs, 0)
    told = order(epochs, 4)
    assert told is not None and told["ends"]
    epochs.finish(4)
    assert calls.seen == ["begin 0", "end 0"]


def test_an_epoch_that_begins_with_a_stop_has_one_step() -> None:
    calls = Calls(stops_before=4)
    epochs = Epochs(steps=4, calls=calls, workers=2, first=3)
    order(epochs, 0)
    expected = {"plan": None, "until": 5, "is_last": True, "ends": False, "learning_rates": {"rate": 0.125}}
    assert order(epochs, 4) == expected
    epochs.finish(5)
    assert calls.seen == ["begin 3", "end 3", "begin 4", "end 4"] and calls.steps == 5


@pytest.mark.parametrize(("stops", "last"), [({"stops_before": 1}, 5), ({"stops_after": 0}, 4)])
def test_after_a_restart_training_ends_at_the_same_step(stops: dict[str, int], last: int) -> None:
    """The ranks start again from a checkpoint that is older than the request to stop."""
    calls = Calls(**stops)
    epochs = Epochs(steps=4, calls=calls, workers=2)
    order(epochs, 0)
    order(epochs, 4)
    epochs.restart(2, None)
    told = order(epochs, 2)
    assert told is not None and (told["until"], told["is_last"], told["ends"]) == (4, last == 4, False)
    told = order(epochs, 4)
    assert told is not None and (told["until"], told["is_last"], told["ends"]) == (last, True, last == 4)
    epochs.finish(last)
    assert calls.seen == ["begin 0", "end 0", *(["begin 1", "end 1"] if last == 5 else [])]


def test_a_restart_repeats_no_call() -> None:
    calls = Calls()
    epochs = Epochs(steps=4, calls=calls, workers=2)
    order(epochs, 0)
    order(epochs, 4)
    epochs.on_segment(1, 8, [])  # the other one dies
    epochs.restart(2, None)
    assert order(epochs, 2) == goes_on(until=4, rate=None)  # as it was in epoch 0
    assert order(epochs, 4) == goes_on(until=8, rate=0.5)
    assert calls.seen == ["begin 0", "end 0", "begin 1"]
    epochs.finish(8)
    assert calls.seen[-1] == "end 1"


def test_a_run_that_goes_on_within_an_epoch_ends_it() -> None:
    calls = Calls()
    epochs = Epochs(steps=4, calls=calls, workers=2)
    told = order(epochs, 6)
    assert told is not None and told["until"] == 8
    epochs.finish(8)
    assert calls.seen == ["begin 1", "end 1"]


def test_a_run_that_is_stopped_within_an_epoch_does_not_end_it() -> None:
    calls = Calls()
    epochs = Epochs(steps=4, calls=calls, workers=2)
    order(epochs, 0)
    epochs.finish(3)
    assert calls.seen == ["begin 0"]


def test_a_run_that_is_to_stop_begins_no_epoch() -> None:
    """The signal arrives while a callback runs at the end of an epoch. No command is sent, so no rank takes a step."""
    calls = Calls()
    epochs = Epochs(steps=4, calls=calls, workers=2)
    epochs.is_stopping = lambda: "end 0" in calls.seen
    assert order(epochs, 0) is not None
    assert order(epochs, 4) is None
    assert calls.seen == ["begin 0", "end 0"]


def test_a_run_that_has_been_told_to_stop_ends_no_epoch() -> None:
    """The process that resumes the run ends the epoch."""
    calls = Calls()
    epochs = Epochs(steps=4, calls=calls, workers=2)
    order(epochs, 0)
    epochs.is_stopping = lambda: True
    assert order(epochs, 4) is None
    assert calls.seen == ["begin 0"]
