"""The curve through measured times, and the number of pieces at its lowest point."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from parallax_runner.search.candidates import LEAST_POINTS
from parallax_runner.search.trial import Choice, Curve, Trial


def fit(trials: Sequence[Trial]) -> Curve | None:
    """The curve with the least squared relative error, theta1 and theta2 not negative; None for fewer than 3 points.

    Relative, because a trial's error grows with its time: a slow point far from the lowest one must not bend the curve
    there. With two bounds the best of the four cases (each of the two thetas free or 0) is the solution.
    """
    if len({trial.partitions for trial in trials}) < LEAST_POINTS:
        return None
    numbers = np.array([trial.partitions for trial in trials], float)
    secs = np.array([trial.secs for trial in trials])
    terms = np.stack([np.ones_like(numbers), 1 / numbers, numbers], axis=1) / secs[:, None]
    best, least_error = np.array([secs.mean(), 0.0, 0.0]), np.inf
    for free in itertools.product([False, True], repeat=2):
        columns = [0, *(column for column, is_free in zip((1, 2), free, strict=True) if is_free)]
        thetas = np.zeros(3)
        thetas[columns] = np.linalg.lstsq(terms[:, columns], np.ones_like(secs), rcond=None)[0]
        error = float(np.square(terms @ thetas - 1).sum())
        if (thetas[1:] >= 0).all() and error < least_error:
            best, least_error = thetas, error
    return Curve(*map(float, best))


def choose(trials: Sequence[Trial]) -> Choice:
    """The integer with the least fitted time between the least and the most that was tried, the smaller of two equals;
    without a curve, the best that was measured."""
    curve = fit(trials)
    tried = [trial.partitions for trial in trials]
    if curve is None:
        partitions = min(trials, key=lambda trial: (trial.secs, trial.partitions)).partitions
    else:
        partitions = min(range(min(tried), max(tried) + 1), key=curve.secs)
    return Choice(partitions, tuple(trials), curve)
