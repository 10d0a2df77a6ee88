"""Ends and begins epochs: between two of them all ranks wait for what callbacks decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parallax_runner.track.run_record import RunRecord


class EpochCalls(Protocol):
    """What is called between steps, in the process that drives the run. Epochs are counted from 0 on."""

    def begin(self, epoch: int) -> None:
        """Before the first step of an epoch."""

    def end(self, epoch: int) -> None:
        """After the last step of an epoch, when its checkpoint is written and its validation is done."""

    @property
    def stops(self) -> bool:
        """Whether the training is to end now."""

    @property
    def learning_rate(self) -> float | None:
        """What the next steps are to use; None where nothing has changed it."""


@dataclass
class Epochs:
    """The epochs of one run, of `steps` steps each; `first` is the number of the first one."""

    steps: int
    calls: EpochCalls
    workers: int
    first: int = 0
    _begun: int | None = None
    _ended: int | None = None
    _rates: dict[int, float | None] = field(default_factory=dict)  # by epoch, for one that is repeated
    _waiting: set[int] = field(default_factory=set)

    def restart(self) -> None:
        """All ranks begin again, from a checkpoint: none waits any more."""
        self._waiting = set()

    def on_segment(self, rank: int, step: int, step_secs: Sequence[float]) -> dict[str, Any] | None:
        """The order to all ranks, when the last of them has come to `step`. What is called for an epoch is called once,
        also where a restart repeats its steps."""
        del step_secs
        self._waiting.add(rank)
        if len(self._waiting) < self.workers:
            return None
        self._waiting = set()
        epoch = self.first + step // self.steps
        if step % self.steps == 0:
            self._end(epoch - 1)
        if not self.calls.stops and (self._begun is None or self._begun < epoch):
            self._begun = epoch
            self.calls.begin(epoch)
            self._rates[epoch] = self.calls.learning_rate
        rate = self._rates.get(epoch)
        until = (step // self.steps + 1) * self.steps
        return {"plan": None, "until": until, "ends": self.calls.stops, "learning_rate": rate}

    def finish(self, step: int) -> None:
        """After the run: `step` steps are done."""
        if step % self.steps == 0 and step > 0:
            self._end(self.first + step // self.steps - 1)

    def _end(self, epoch: int) -> None:
        if self._begun is not None and self._begun == epoch and self._ended != epoch:
            self._ended = epoch
            self.calls.end(epoch)


# Makes, of a run's record, what is asked between epochs.
MakeEpochs = Callable[[RunRecord], Epochs]
