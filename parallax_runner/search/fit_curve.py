"""Fits the curve of the Parallax paper to measured times, and chooses one of the tried numbers of pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallax_runner.search.trial import Choice, Curve, Trial

# The number of unknowns in the curve.
LEAST_POINTS = 3


def curve_of(trials: Sequence[Trial]) -> Curve | None:
    """Returns the curve with non-negative thetas that is closest to the trials, or None if fewer than three numbers of
    pieces were tried.

    Each trial is weighted by the inverse of its standard error.
    """
    if len({trial.partitions for trial in trials}) < LEAST_POINTS:
        return None
    from scipy.optimize import nnls  # Every process of a run imports this module, and this import takes 0.25 s.

    weights = np.array([1 / trial.error_secs for trial in trials])
    terms = np.array([[1.0, 1.0 / trial.partitions, trial.partitions] for trial in trials])
    secs = np.array([trial.secs for trial in trials])
    thetas, _ = nnls(terms * weights[:, None], secs * weights)
    return Curve(*map(float, thetas))


def fastest(trials: Sequence[Trial]) -> Trial:
    """Returns the trial with the shortest step. Among equally fast trials, returns the one with the fewest pieces."""
    return min(trials, key=lambda trial: (trial.secs, trial.partitions))


def choose(trials: Sequence[Trial]) -> Choice:
    """Chooses the tried number of pieces with the shortest step.

    A number that was not tried is never chosen, because its time would be a guess.
    """
    best = fastest(trials)
    return Choice(best.partitions, tuple(trials), curve_of(trials), best.secs, best.error_secs)
