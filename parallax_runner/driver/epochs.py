"""Begins and ends epochs. Between two epochs, all ranks wait for the decisions of the callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from parallax_runner.driver.segments import Handler, Segments
from parallax_runner.launch.control import wire
from parallax_runner.track.run_record import RunRecord


class EpochCalls(Protocol):
    """The callbacks that run between epochs, in the driver process. Epochs are numbered from 0."""

    def begin(self, epoch: int) -> None:
        """Called before the first step of an epoch."""

    def end(self, epoch: int, step: int) -> None:
        """Called after the last step of an epoch, once its checkpoint is written and its validation is done. `step` is
        the total number of completed steps."""

    @property
    def stops(self) -> bool:
        """Whether training must end. If a callback requests a stop when an epoch begins, training ends after the
        epoch's first step, as in Keras."""

    @property
    def learning_rates(self) -> Mapping[str, float]:
        """The learning rates for the next steps that callbacks can change, by the name of their variable."""


@dataclass
class Epochs(Segments):
    """The epochs of one run, with `steps` steps each. `first` is the number of the first epoch. `is_stopping` returns
    whether a signal has asked the run to stop."""

    steps: int
    calls: EpochCalls
    workers: int
    first: int = 0
    is_stopping: Callable[[], bool] = lambda: False
    _begun: int | None = None
    _ended: int | None = None
    _last_step: int | None = None  # set once a callback has requested to stop
    _rates: dict[int, Mapping[str, float]] = field(default_factory=dict)  # by epoch; a restart repeats some
    _waiting: set[int] = field(default_factory=set)

    def handlers(self) -> Mapping[str, Handler]:
        return {"segment": self.on_segment, wire.SAVING: self.on_saving}

    def restart(self, step: int, fields: Mapping[str, Any] | None) -> None:
        """Clears the set of waiting ranks. Call this method when all ranks restart from the checkpoint of `step`, whose
        sidecar has the epoch's state `fields`."""
        del step, fields
        self._waiting = set()

    def resize(self, workers: int) -> None:
        self.workers = workers

    def on_saving(self, rank: int, step: int) -> wire.Answer | None:
        """Returns the answer to the chief, which asks for the state of the epoch at the checkpoint of `step`. Returns
        None if not all ranks have reported this step yet. `answer` then returns the answer later."""
        del step
        return wire.Answer(rank, wire.STATE, {"state": None})

    def answer(self) -> wire.Answer | None:
        """Returns the answer to an earlier question of the chief, or None if no question can be answered."""
        return None

    def on_segment(self, rank: int, step: int, step_secs: Sequence[float]) -> dict[str, Any] | None:
        """Returns the command for all ranks once the last rank has reached `step`, and None before that. Calls the
        callbacks of an epoch only once, even if a restart repeats the steps of that epoch.

        If a signal has asked the run to stop, the ranks wait until they are told to stop, so that no step of the next
        epoch is trained. Returns None in this case.
        """
        del step_secs
        self._waiting.add(rank)
        if len(self._waiting) < self.workers:
            return None
        self._waiting = set()
        self._end_and_begin(step)
        return None if self.is_stopping() else self._command(step)

    def _end_and_begin(self, step: int) -> None:
        epoch = self.first + step // self.steps
        if step % self.steps == 0 and not self.is_stopping():
            self._end(epoch - 1, step)
        if self._last_step is not None or self.is_stopping():
            return
        if self._begun is None or self._begun < epoch:
            self._begin(epoch, step)

    def _command(self, step: int) -> dict[str, Any]:
        epoch = self.first + step // self.steps
        rates = self._rates.get(epoch, {})
        until = (step // self.steps + 1) * self.steps
        is_last = self._last_step is not None and self._last_step <= until
        return {
            "plan": None,
            "until": self._last_step if is_last else until,
            "is_last": is_last,
            "ends": self._last_step is not None and self._last_step <= step,
            "learning_rates": dict(rates),
        }

    def end_at(self, step: int) -> None:
        """Ends the training at `step`, from which the run resumes, before another step."""
        self._last_step = step

    def finish(self, step: int) -> None:
        """Ends the last epoch if it is complete, or if a callback stopped it. Call this method after the run. `step` is
        the total number of completed steps."""
        if step > 0 and (step % self.steps == 0 or step == self._last_step):
            self._end(self.first + (step - 1) // self.steps, step)

    def _begin(self, epoch: int, step: int) -> None:
        self._begun = epoch
        self.calls.begin(epoch)
        self._rates[epoch] = self.calls.learning_rates
        if self.calls.stops:
            first_step = (epoch - self.first) * self.steps + 1
            self._last_step = max(step, first_step)

    def _end(self, epoch: int, step: int) -> None:
        if self._begun is not None and self._begun == epoch and self._ended != epoch:
            self._ended = epoch
            self.calls.end(epoch, step)
            if self.calls.stops:
                self._last_step = step


# A function that takes the record of a run and the checkpoint from which the run resumes, and creates the run's epochs.
MakeEpochs = Callable[[RunRecord, Path | None], Epochs]
