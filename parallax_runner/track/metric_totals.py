"""Adds up the metric sums that the ranks report, over all ranks and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_runner.train.metric_sums import NOTHING, Sums

# Turns sums over batches and ranks, and the means of the values of the last step, into metric values by name.
Results = Callable[[Sequence[Any], Sequence[float]], dict[str, float]]


@dataclass
class MetricTotals:
    """The metric sums of the training steps. Only steps that all `workers` ranks have reported are counted, up to
    `last_step`. If ranks do not step together (`waits_for_all` is False), every report is counted immediately. When the
    run begins, `last_step` is the number of steps that were complete before."""

    workers: int
    results: Results
    waits_for_all: bool = True
    last_step: int = 0
    epoch: Sums = NOTHING  # the sums since the epoch began
    _window: Sums = NOTHING
    _pending: list[tuple[int, Sums]] = field(default_factory=list)
    _last_steps: dict[int, int] = field(default_factory=dict)

    def add(self, rank: int, step: int, sums: Sums) -> None:
        """Adds one rank's sums over its steps since its last report, up to `step`."""
        self._last_steps[rank] = step
        self._pending.append((step, sums))
        if self.waits_for_all and len(self._last_steps) < self.workers:
            return
        self.last_step = min(self._last_steps.values())
        is_counted = [one <= self.last_step or not self.waits_for_all for one, _ in self._pending]
        total = Sums.total(each for (_, each), counts in zip(self._pending, is_counted, strict=True) if counts)
        self._pending = [one for one, counts in zip(self._pending, is_counted, strict=True) if not counts]
        self._window = self._window.plus(total)
        self.epoch = self.epoch.plus(total)

    def take_window(self) -> dict[str, float]:
        """Returns the metric values of the steps since the last call."""
        sums, self._window = self._window, NOTHING
        return self._values(sums)

    def take_epoch(self) -> dict[str, float]:
        """Returns the metric values of the steps since the last call."""
        sums, self.epoch = self.epoch, NOTHING
        return self._values(sums)

    def restart(self, step: int, epoch: Sums = NOTHING) -> None:
        """Continues at `step`, where the epoch has the sums `epoch`. Later steps run again."""
        self.last_step, self.epoch, self._window = step, epoch, NOTHING
        self._pending, self._last_steps = [], {}

    def _values(self, sums: Sums) -> dict[str, float]:
        return {} if sums.is_empty else self.results(sums.values, sums.last.means)
