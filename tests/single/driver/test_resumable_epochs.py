"""The state of an epoch in a checkpoint, and what a run that resumes from it calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from parallax_runner.driver.epoch_state import EpochState
from parallax_runner.driver.resumable_epochs import ResumableEpochs
from parallax_runner.errors import LaunchError
from parallax_runner.launch.control import wire
from parallax_runner.track.metric_totals import MetricTotals
from parallax_runner.train.metric_sums import Sums

STEPS = 4


@dataclass
class Calls:
    """Callbacks that multiply the rate by 0.5 at the beginning and by 0.25 at the end of an epoch, and count."""

    totals: MetricTotals
    rate: float = 1.0
    stops: bool = False
    stops_before: int | None = None
    stops_after: int | None = None
    count: int = 0
    seen: list[str] = field(default_factory=list)

    def begin(self, epoch: int) -> None:
        self.seen.append(f"begin {epoch} with {self.rate}, {self.count}")
        self.rate *= 0.5
        self.stops = epoch == self.stops_before

    def end(self, epoch: int, step: int) -> None:
        self.seen.append(f"end {epoch} with {self.rate}, {self.totals.take_epoch()['loss']}")
        self.rate *= 0.25
        self.count += 1
        self.stops = epoch == self.stops_after

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def resume(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]

    @property
    def learning_rates(self) -> dict[str, float]:
        return {"rate": self.rate}

    def set_learning_rates(self, rates: Mapping[str, float]) -> None:
        self.rate = rates.get("rate", self.rate)


def loss(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
    return {"loss": float(sums[0])}


@dataclass
class Run:
    """The driver's part of a run of two ranks. The loss of each rank in step n is n."""

    stops_before: int | None = None

    def __post_init__(self) -> None:
        self.totals = MetricTotals(2, loss)
        self.calls = Calls(self.totals, stops_before=self.stops_before)
        self.epochs = ResumableEpochs(STEPS, self.calls, workers=2, totals=self.totals, call=3)

    def train(self, first: int, last: int) -> dict[int, dict[str, Any] | None]:
        """Trains the steps after `first`, up to `last`. Returns the state in the sidecar of each step."""
        states: dict[int, dict[str, Any] | None] = {}
        for step in range(first, last + 1):
            if step > first:
                self.report(step)
                states[step] = self.saved(step)
            if step % STEPS == 0 or step == first:
                self.segment(step)
        return states

    def report(self, step: int) -> None:
        for rank in (0, 1):
            self.totals.add(rank, step, Sums.of([step + 0.1]))

    def saved(self, step: int) -> dict[str, Any] | None:
        answer = self.epochs.on_saving(0, step)
        assert answer is not None and (answer.rank, answer.kind) == (0, wire.STATE)
        state: dict[str, Any] | None = json.loads(json.dumps(answer.fields["state"]))
        return state

    def segment(self, step: int) -> dict[str, Any] | None:
        assert self.epochs.on_segment(1, step, []) is None
        return self.epochs.on_segment(0, step, [])


def state_in(fields: dict[str, Any] | None) -> EpochState:
    state = EpochState.of(fields)
    assert state is not None
    return state


@pytest.mark.parametrize("at", range(1, 12))
def test_a_run_that_resumes_at_any_step_equals_an_unbroken_run(at: int) -> None:
    unbroken = Run()
    states = unbroken.train(0, 12)
    unbroken.epochs.finish(12)
    resumed = Run()
    resumed.epochs.resume(state_in(states[at]), at)
    later = resumed.train(at, 12)
    resumed.epochs.finish(12)
    calls = unbroken.calls.seen
    first = next(number for number, one in enumerate(calls) if one.startswith(f"begin {(at - 1) // STEPS}"))
    assert resumed.calls.seen == calls[first:]
    assert resumed.calls.rate == unbroken.calls.rate
    assert later == {step: state for step, state in states.items() if step > at}


def test_the_rate_of_the_epoch_is_kept_even_if_callbacks_now_set_another() -> None:
    states = Run().train(0, 6)
    resumed = Run()
    resumed.epochs.resume(EpochState(**{**states[6], "rates": {"rate": 0.7}}), 6)  # type: ignore[dict-item]
    order = resumed.segment(6)
    assert order is not None and order["learning_rates"] == {"rate": 0.7}


def test_a_checkpoint_after_the_end_of_an_epoch_begins_the_next_one() -> None:
    """A signal has stopped the run in a callback at the end of an epoch, so the last checkpoint comes afterwards."""
    unbroken = Run()
    unbroken.train(0, 8)
    stopped = Run()
    stopped.train(0, 3)
    stopped.report(4)
    stopped.epochs.is_stopping = lambda: stopped.calls.count == 1
    assert stopped.segment(4) is None
    state = state_in(stopped.saved(4))
    assert (state.number, state.has_begun, state.sums) == (1, False, {})
    resumed = Run()
    resumed.epochs.resume(state, 4)
    resumed.train(4, 8)
    assert resumed.calls.seen == unbroken.calls.seen[2:]


def test_a_run_that_a_callback_has_ended_does_not_go_on() -> None:
    """The process died after the last checkpoint, before it could leave its result."""
    ended = Run()
    ended.train(0, 3)
    ended.report(4)
    ended.calls.stops_after = 0
    order = ended.segment(4)
    assert order is not None and order["ends"]
    resumed = Run()
    resumed.epochs.resume(state_in(ended.saved(4)), 4)
    order = resumed.segment(4)
    assert order is not None and order["ends"]
    resumed.epochs.finish(4)
    assert resumed.calls.seen == []


def test_the_chief_gets_its_answer_when_all_ranks_have_reported() -> None:
    run = Run()
    run.segment(0)
    run.totals.add(0, 2, Sums.of([1.0]))
    assert run.epochs.on_saving(0, 2) is None
    run.totals.add(0, 3, Sums.of([10.0]))
    assert run.epochs.answer() is None
    run.totals.add(1, 2, Sums.of([2.0]))
    answer = run.epochs.answer()
    assert answer is not None and answer.fields["state"]["sums"]["metrics"] == [3.0]
    assert run.epochs.answer() is None
    with pytest.raises(LaunchError, match="all ranks have reported step 2, but the chief saves step 1"):
        run.epochs.on_saving(0, 1)


def test_a_restart_repeats_an_epoch_with_its_own_state() -> None:
    """The callbacks have already seen the end of the epoch."""
    run, unbroken = Run(), Run()
    expected = unbroken.train(0, 12)
    states = run.train(0, 10)
    run.epochs.on_saving(0, 11)  # never answered
    run.epochs.restart(6, states[6])
    assert run.epochs.answer() is None
    later = run.train(6, 12)
    assert state_in(later.pop(8)).number == 2  # the end of epoch 1 is not called again
    assert later == {step: expected[step] for step in later} and len(later) == 5
    run.epochs.finish(12)
    unbroken.epochs.finish(12)
    assert run.calls.seen == unbroken.calls.seen


def test_a_restart_at_the_end_of_an_epoch_counts_none_of_its_steps_again() -> None:
    run, unbroken = Run(), Run()
    unbroken.train(0, 8)
    states = run.train(0, 5)
    run.epochs.restart(4, states[4])
    run.train(4, 8)
    assert run.calls.seen == unbroken.calls.seen


def test_a_stop_before_an_epoch_still_ends_it_after_one_step() -> None:
    unbroken = Run(stops_before=1)
    states = unbroken.train(0, 5)
    unbroken.epochs.finish(5)
    resumed = Run(stops_before=1)
    resumed.epochs.resume(state_in(states[5]), 5)
    order = resumed.segment(5)
    assert order is not None and order["ends"]
    resumed.epochs.finish(5)
    assert resumed.calls.seen == unbroken.calls.seen[2:]


def test_a_state_of_other_epochs_does_not_fit() -> None:
    state = state_in(Run().train(0, 2)[2])
    epochs = Run().epochs
    assert epochs.fits(state)
    assert not epochs.fits(EpochState(**{**state.fields(), "steps": 5}))
    assert not epochs.fits(EpochState(**{**state.fields(), "first": 1}))


def test_no_state_is_one_that_this_version_does_not_know() -> None:
    state = Run().train(0, 2)[2]
    assert state is not None
    assert EpochState.of(None) is None
    assert EpochState.of({**state, "later": 1}) == EpochState.of(state)
    assert EpochState.of({"number": 1}) is None
