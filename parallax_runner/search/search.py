"""The search itself: what to try next, and what to choose. Told times, it launches nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallax_runner.search.candidates import Range, next_partitions
from parallax_runner.search.fit import curve_of, estimate, fit
from parallax_runner.search.trial import Choice, Trial


def search(measure: Callable[[int], Trial], allowed: Range, trials: Sequence[Trial] = ()) -> Choice:
    """Calls `measure` with one number of pieces after another, after those that were tried before; what it raises ends
    the search."""
    made = list(trials)
    while (partitions := next_partitions(made, allowed)) is not None:
        made.append(measure(partitions))
    return choose(made)


def choose(trials: Sequence[Trial]) -> Choice:
    """Of the numbers that were tried the one with the least time, by its trial and the curve; the smaller of equals.

    Not one between: the search goes on while another promises more than noise, and what was measured is no guess.
    """
    found = fit(tuple(trials))
    (secs, error_secs), partitions = min((estimate(trial, found), trial.partitions) for trial in trials)
    return Choice(partitions, tuple(trials), curve_of(trials), secs, error_secs)
