"""The curve through measured times, and how sure it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from parallax_runner.search.trial import Curve, Trial

# The curve has as many unknowns.
LEAST_POINTS = 3
# The share of a step's time by which real times leave any curve of this form.
MISFIT_SHARE = 0.02
DRAWS = 300
SEED = 1


@dataclass(frozen=True)
class Fit:
    """What trials say of the curve: the likeliest one, and `draws` [DRAWS, 3] of thetas that they leave possible."""

    curve: Curve
    draws: np.ndarray

    def secs(self, partitions: float) -> np.ndarray:
        """A step's time with so many pieces, by each draw: [DRAWS]."""
        return self.draws @ _terms(partitions)


@functools.lru_cache(maxsize=64)
def fit(trials: tuple[Trial, ...]) -> Fit:
    """Weighted least squares with thetas that are not negative, each trial weighed by its error.

    Before anything is measured each term may be all of a step's time, so that one trial has a fit as well. The draws
    are solutions for measurements and prior that are moved by their errors at random: draws from the posterior, where
    no bound is met (Papandreou and Yuille 2010), and never negative where one is.
    """
    scale, start = trials[0].secs, trials[0].partitions
    prior = np.array([scale, scale * start, scale / start])
    rows = np.array([_terms(trial.partitions) for trial in trials])
    secs = np.array([trial.secs for trial in trials])
    errors = np.array([np.hypot(trial.error_secs, MISFIT_SHARE * trial.secs) for trial in trials])
    errors *= _misfit((rows, secs), errors)
    weighted = np.concatenate([rows / errors[:, None], np.diag(1 / prior)])
    wanted = np.concatenate([secs / errors, np.zeros(3)])
    noise = np.random.default_rng(SEED).normal(size=(DRAWS, len(wanted)))
    draws = np.array([_solve(weighted, wanted + each) for each in noise])
    return Fit(Curve(*map(float, _solve(weighted, wanted))), draws)


def curve_of(trials: Sequence[Trial]) -> Curve | None:
    """The likeliest curve, None for fewer than three points."""
    return fit(tuple(trials)).curve if len({trial.partitions for trial in trials}) >= LEAST_POINTS else None


def estimate(trial: Trial, found: Fit) -> tuple[float, float]:
    """A tried number's time and its standard error: what was measured there and what the curve says, by their errors.

    The curve may be wrong by its misfit; a measurement that is much surer than that stands for itself.
    """
    by_curve = found.secs(trial.partitions)
    curve_error = np.hypot(by_curve.std(), MISFIT_SHARE * trial.secs)
    share = curve_error**2 / (curve_error**2 + trial.error_secs**2)
    return float(share * trial.secs + (1 - share) * by_curve.mean()), float(np.sqrt(share) * trial.error_secs)


def _misfit(measured: tuple[np.ndarray, np.ndarray], errors: np.ndarray) -> float:
    """By which factor trials are further from any curve than their errors allow, at least 1 (Birge 1932): then one of
    them was disturbed, or the curve has another form, and nothing is as sure as it looks."""
    rows, secs = measured
    solution = _solve(rows / errors[:, None], secs / errors)
    spare = len(secs) - int((solution > 0).sum())
    if spare < 1:
        return 1.0
    return max(1.0, float(np.sqrt(np.square((rows @ solution - secs) / errors).sum() / spare)))


def _terms(partitions: float) -> np.ndarray:
    return np.array([1.0, 1.0 / partitions, partitions])


def _solve(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return nnls(matrix, wanted)[0]
