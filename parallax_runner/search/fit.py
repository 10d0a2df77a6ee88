"""Fits a curve to measured times, estimates the curve's uncertainty, and chooses one of the tried numbers of pieces."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax_runner.search.trial import Choice, Curve, Trial

# The number of unknowns in the curve.
LEAST_POINTS = 3
# Real times deviate from any curve of this form by this fraction of a step's time. Two numbers of pieces have similar
# deviations if they are less than this many doublings apart. One reason for deviations is that fewer connections are
# used if there are fewer pieces than servers.
MISFIT_SHARE, MISFIT_DOUBLINGS = 0.08, 1.0
DRAWS = 300
SEED = 1


@dataclass(frozen=True)
class Fit:
    """What trials reveal about the time of a step: the most likely curve and, through `secs`, its uncertainty."""

    curve: Curve
    trials: tuple[Trial, ...]
    scale: float

    def secs(self, partitions: float) -> np.ndarray:
        """Returns [DRAWS] samples from the posterior of the step time with this number of pieces. Each sample is a
        least-squares solution for measurements and a prior that are shifted at random according to their errors. If no
        bound is active, this is an exact sample from the posterior (Papandreou and Yuille 2010). Otherwise, the
        coefficients of the sample are still non-negative.
        """
        return _draws(self.trials, partitions, self.scale)


@functools.lru_cache(maxsize=64)
def fit(trials: tuple[Trial, ...]) -> Fit:
    """Fits non-negative thetas by least squares. Each trial is weighted by its error and the misfit.

    The prior allows each term to account for all of a step's time, so that even a single trial has a fit. If the trials
    are further from every curve than their errors and the misfit allow, either a trial was disturbed or the true curve
    has a different form. All errors are then multiplied by the ratio between the actual and the allowed deviation
    (Birge 1932).
    """
    rows, secs, covariance = _measured(trials)
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    free = _solve(root @ rows, root @ secs)
    spare = len(secs) - int((free > 0).sum())
    scale = 1.0 if spare < 1 else max(1.0, float(np.sqrt(np.square(root @ (rows @ free - secs)).sum() / spare)))
    matrix = np.concatenate([root @ rows / scale, np.diag(1 / _prior(trials))])
    wanted = np.concatenate([root @ secs / scale, np.zeros(3)])
    return Fit(Curve(*map(float, _solve(matrix, wanted))), trials, scale)


def curve_of(trials: Sequence[Trial]) -> Curve | None:
    """Returns the most likely curve, or None if fewer than three numbers of pieces were tried."""
    return fit(tuple(trials)).curve if len({trial.partitions for trial in trials}) >= LEAST_POINTS else None


def estimate(trial: Trial, found: Fit) -> tuple[float, float]:
    """Returns the step time and its standard error for a number of pieces that was tried. Both are computed from the
    trial of this number, the trials of neighbouring numbers, and the curve."""
    draws = found.secs(trial.partitions)
    return float(draws.mean()), float(draws.std())


@functools.lru_cache(maxsize=256)
def _draws(trials: tuple[Trial, ...], partitions: float, scale: float) -> np.ndarray:
    rows, secs, covariance = _measured(trials)
    number = len(trials)
    typical_secs = float(np.median(secs))
    at = np.array([*(trial.partitions for trial in trials), partitions])
    misfits = scale**2 * _misfit(at, typical_secs)
    noise = np.random.default_rng(SEED).normal(size=(DRAWS, 2 * number + 4))
    # The trials come first in the Cholesky factor, and therefore their misfits do not depend on the requested number.
    drawn = noise[:, : number + 1] @ np.linalg.cholesky(misfits + 1e-12 * misfits[0, 0] * np.eye(number + 1)).T
    errors = scale * np.array([trial.error_secs for trial in trials]) * noise[:, number + 1 : 2 * number + 1]
    moved = secs - drawn[:, :number] - errors
    prior, thetas0 = _prior(trials), noise[:, -3:]
    root = np.linalg.inv(np.linalg.cholesky(scale**2 * covariance))
    matrix = np.concatenate([root @ rows, np.diag(1 / prior)])
    thetas = np.array(
        [_solve(matrix, np.concatenate([root @ each, one])) for each, one in zip(moved, thetas0, strict=True)]
    )
    left = moved - thetas @ rows.T
    found: np.ndarray = thetas @ _terms(partitions) + drawn[:, number]
    found += left @ np.linalg.solve(scale**2 * covariance, misfits[:number, number])
    return found


def _measured(trials: Sequence[Trial]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns three arrays: the terms [trials, 3], the seconds [trials], and the covariance [trials, trials] of the
    deviations from the curve.
    """
    rows = np.array([_terms(trial.partitions) for trial in trials])
    secs = np.array([trial.secs for trial in trials])
    errors = np.array([trial.error_secs for trial in trials])
    at = np.array([trial.partitions for trial in trials])
    return rows, secs, _misfit(at, float(np.median(secs))) + np.diag(errors**2)


def _misfit(partitions: np.ndarray, typical_secs: float) -> np.ndarray:
    apart = np.log2(partitions[:, None] / partitions[None, :]) / MISFIT_DOUBLINGS
    misfit: np.ndarray = (MISFIT_SHARE * typical_secs) ** 2 * np.exp(-(apart**2) / 2)
    return misfit


def _prior(trials: Sequence[Trial]) -> np.ndarray:
    secs, start = trials[0].secs, trials[0].partitions
    return np.array([secs, secs * start, secs / start])


def _terms(partitions: float) -> np.ndarray:
    return np.array([1.0, 1.0 / partitions, partitions])


def _solve(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls  # Every process of a run imports this module, and this import takes 0.25 s.

    found: np.ndarray = nnls(matrix, wanted)[0]
    return found


def choose(trials: Sequence[Trial]) -> Choice:
    """Chooses the tried number of pieces with the shortest time according to its trial and the curve. Among equally
    good numbers, chooses the smallest.

    A number that was not tried is never chosen, because its time would be a guess. Instead, the search continues while
    the expected improvement of another number exceeds the noise.
    """
    found = fit(tuple(trials))
    (secs, error_secs), partitions = min((estimate(trial, found), trial.partitions) for trial in trials)
    return Choice(partitions, tuple(trials), curve_of(trials), secs, error_secs)
