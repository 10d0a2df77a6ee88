"""The search itself: asks what to try next, has it measured, and chooses."""

from __future__ import annotations

from collections.abc import Callable

from parallax_runner.search.candidates import Range, next_partitions
from parallax_runner.search.fit import choose
from parallax_runner.search.trial import Choice, Trial


def search(measure: Callable[[int], Trial], allowed: Range) -> Choice:
    """Calls `measure` with one number of pieces after another; what it raises ends the search."""
    trials: list[Trial] = []
    while (partitions := next_partitions({trial.partitions: trial.secs for trial in trials}, allowed)) is not None:
        trials.append(measure(partitions))
    return choose(trials)
