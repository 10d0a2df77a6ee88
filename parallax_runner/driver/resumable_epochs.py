"""Epochs of `fit`, which continue from a checkpoint as if the run had not stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from parallax_runner.driver.epoch_state import EpochState
from parallax_runner.driver.epochs import EpochCalls, Epochs
from parallax_runner.errors import LaunchError
from parallax_runner.launch.control import wire
from parallax_runner.track.metric_totals import MetricTotals
from parallax_runner.train.metric_sums import NOTHING, Sums

CHIEF = 0


class ResumableCalls(EpochCalls, Protocol):
    """Callbacks whose state can be stored."""

    def state(self) -> dict[str, Any]:
        """Returns the state of the callbacks, which consists of numbers, strings, lists and dicts."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Begins the training with the state that `state` has returned in another process."""

    def set_learning_rates(self, rates: Mapping[str, float]) -> None:
        """Sets the learning rates whose variables have these names."""


@dataclass
class ResumableEpochs(Epochs):
    """Epochs that answer the chief's question for the state of an epoch at the step of a checkpoint.

    `totals` are the metric sums, or None if there are no metrics. `call` is the number of the call of `fit`
    (`EpochState`).
    """

    calls: ResumableCalls
    totals: MetricTotals | None = None
    call: int = 1
    _states: dict[int, EpochState] = field(default_factory=dict)  # by epoch; a restart repeats some of them
    _asked_step: int | None = None

    def resume(self, state: EpochState, step: int) -> None:
        """Continues at `step` in another process: calls the callbacks for the beginning of the epoch again, but keeps
        the learning rates that they set before."""
        self.calls.resume(state.callbacks)
        self.calls.set_learning_rates(state.rates_before)
        self._set_sums(state, step)
        if state.stops:
            self._last_step = step
        if not state.has_begun:
            return
        self._begin(state.number, step)
        self.calls.set_learning_rates(state.rates)
        self._rates[state.number] = state.rates
        self._states[state.number] = state

    def restart(self, step: int, fields: Mapping[str, Any] | None) -> None:
        super().restart(step, fields)
        self._asked_step = None
        self._set_sums(EpochState.of(fields), step)

    def fits(self, state: EpochState) -> bool:
        """Returns whether the epochs of this run have the same steps as the epochs of the run that left `state`."""
        return (state.first, state.steps) == (self.first, self.steps)

    def on_saving(self, rank: int, step: int) -> wire.Answer | None:
        """Returns the answer to the chief, which saves `step`, or None if not all ranks have reported this step."""
        del rank
        self._asked_step = step
        return self.answer()

    def answer(self) -> wire.Answer | None:
        """Returns the answer to the chief if the chief has asked and all ranks have now reported the step."""
        step = self._asked_step
        if step is None or (self.totals is not None and self.totals.last_step < step):
            return None
        if self.totals is not None and self.totals.last_step > step:
            raise LaunchError(f"all ranks have reported step {self.totals.last_step}, but the chief saves step {step}")
        self._asked_step = None
        return wire.Answer(CHIEF, wire.STATE, {"state": self._state_at(step)})

    def _begin(self, epoch: int, step: int) -> None:
        before = self._not_begun(epoch)
        super()._begin(epoch, step)
        self._states[epoch] = dataclasses.replace(before, rates=dict(self.calls.learning_rates), has_begun=True)

    def _end(self, epoch: int, step: int) -> None:
        super()._end(epoch, step)
        if self.totals is not None:
            self.totals.epoch = NOTHING  # also if a restart has repeated an epoch whose end was called before

    def _not_begun(self, epoch: int) -> EpochState:
        return EpochState(
            epoch,
            self.first,
            self.steps,
            self.call,
            rates_before=dict(self.calls.learning_rates),
            callbacks=self.calls.state(),
            stops=self.calls.stops,
        )

    def _state_at(self, step: int) -> dict[str, Any] | None:
        """Returns the state after `step` steps, or None before the first epoch."""
        epoch = self.first + max(0, step - 1) // self.steps
        if self._ended == epoch and step % self.steps == 0:
            following = self._states.get(epoch + 1) or self._not_begun(epoch + 1)
            return dataclasses.replace(following, rates={}, has_begun=False).fields()
        state = self._states.get(epoch)
        sums = NOTHING if self.totals is None else self.totals.epoch
        return None if state is None else state.fields(sums)

    def _set_sums(self, state: EpochState | None, step: int) -> None:
        if self.totals is not None:
            fits = state is not None and self.fits(state)
            self.totals.restart(step, Sums.of_fields(state.sums) if state is not None and fits else NOTHING)
