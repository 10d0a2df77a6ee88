"""Adds up the metric sums that the ranks report, over all ranks and steps."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Turns sums over batches and ranks into metric values, which are returned by name.
Results = Callable[[Sequence[Any]], dict[str, float]]
# If an epoch has more parts than this, adjacent parts are merged.
MAX_PARTS = 64
# No part contains steps both up to and after one of the newest checkpoints, because a restart may begin there.
MAX_STARTS = 8
Sums = list[Any]  # one float64 array per tensor


@dataclass
class MetricTotals:
    """The metric sums of the training steps. Only steps that all `workers` ranks have reported are counted. If ranks do
    not step together (`waits_for_all` is False), every report is counted immediately. `first_step` is the number of
    steps that were complete before the run began."""

    workers: int
    results: Results
    waits_for_all: bool = True
    first_step: int = 0
    _pending: list[tuple[int, Sums]] = field(default_factory=list)
    _last_steps: dict[int, int] = field(default_factory=dict)
    _window: Sums = field(default_factory=list)
    # The parts of the epoch, without gaps. Each part has the number of its last step and the sums over its steps.
    _parts: list[tuple[int, Sums]] = field(default_factory=list)
    _taken_step: int | None = None  # the last step of the last epoch
    _starts: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_STARTS))

    def add(self, rank: int, step: int, sums: Sequence[Any] | None) -> None:
        """Adds one rank's sums over its steps since its last report, up to `step`. `sums` is None if the rank has no
        sums."""
        self._last_steps[rank] = step
        self._pending.append((step, as_arrays(sums or [])))
        if not self.waits_for_all:
            complete = step
        elif len(self._last_steps) < self.workers:
            return
        else:
            complete = min(self._last_steps.values())
        by_step: dict[int, list[Sums]] = defaultdict(list)
        for one, each in self._pending:
            if one <= complete or not self.waits_for_all:
                by_step[one].append(each)
        self._pending = [one for one in self._pending if one[0] not in by_step]
        for one, found in sorted(by_step.items()):
            total = added_up(found)
            self._window = added_up([self._window, total])
            if self._taken_step is None or one > self._taken_step or not self.waits_for_all:
                self._parts.append((one, total))
        while len(self._parts) > MAX_PARTS:
            self._join_parts()

    def take_window(self) -> dict[str, float]:
        """Returns the metric values of the steps since the last call."""
        sums, self._window = self._window, []
        return self.results(sums) if sums else {}

    def take_epoch(self) -> dict[str, float]:
        """Returns the metric values of the steps since the last call. If a restart repeats these steps, they are not
        counted again."""
        parts, self._parts = self._parts, []
        if parts:
            self._taken_step = parts[-1][0]
        sums = added_up(each for _, each in parts)
        return self.results(sums) if sums else {}

    def on_checkpoint(self, step: int) -> None:
        """Records the step of a checkpoint from which the run may restart."""
        self._starts.append(step)

    def restart(self, step: int) -> int:
        """Drops the sums of the steps after `step`, because these steps will run again.

        Returns the number of steps that the remaining sums cover. This number is less than `step` if a rank had not
        reported all steps up to `step`, or if a part contained steps both up to and after `step`. Such a part is
        dropped as a whole, so no step is counted twice.
        """
        self._pending, self._window, self._last_steps = [], [], {}
        self._parts = [part for part in self._parts if part[0] <= step]
        taken = self.first_step if self._taken_step is None else self._taken_step
        return min(step, max([taken, *(last for last, _ in self._parts)]))

    def _join_parts(self) -> None:
        """Merges the two oldest adjacent parts that no checkpoint separates. If a checkpoint separates every pair,
        merges the two oldest parts."""
        starts = set(self._starts)
        number = next((number for number, part in enumerate(self._parts[:-1]) if part[0] not in starts), 0)
        pair = self._parts[number : number + 2]
        self._parts[number : number + 2] = [(pair[-1][0], added_up(sums for _, sums in pair))]


def as_arrays(sums: Sequence[Any]) -> Sums:
    """Converts the sums in a report, which are nested lists, to float64 arrays."""
    return [np.asarray(one, np.float64) for one in sums]


def added_up(many: Iterable[Sums]) -> Sums:
    """Returns the elementwise total of several lists of sums. An empty list counts as zeros."""
    filled = [sums for sums in many if sums]
    return [np.sum(each, axis=0) for each in zip(*filled, strict=True)]
