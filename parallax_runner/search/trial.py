"""The data of a search: measured trials, the fitted curve, and the choice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

# The number of steps that each trial discards, because the first steps of a session include its set-up.
WARM_UP_STEPS = 5
# Because load and data vary, two trials with the same number of pieces can differ by this fraction of a step's time
# even if all steps within a trial take the same time.
DRIFT_SHARE = 0.01
# For a normal distribution: the ratio between the standard deviation and the median deviation, and the ratio between
# the error of a median and the error of a mean.
DEVIATIONS, MEDIAN_TO_MEAN = 1.4826, 1.2533


@dataclass(frozen=True)
class Trial:
    """A few steps with sparse variables split into `partitions` pieces. `step_secs` contains the time of each measured
    step in seconds."""

    partitions: int
    step_secs: tuple[float, ...]

    @classmethod
    def of(cls, partitions: int, by_rank: Mapping[int, Sequence[float]]) -> Self:
        """Creates a trial from the times in seconds of all steps on each rank.

        The first steps are dropped. A step takes as long as its slowest rank, because steps are synchronous.
        """
        steps = [max(secs) for secs in zip(*by_rank.values(), strict=False)]
        return cls(partitions, tuple(steps[min(WARM_UP_STEPS, len(steps) - 1) :]))

    @property
    def secs(self) -> float:
        """The time of a step: the median, which hardly changes if the machine pauses during one step."""
        return statistics.median(self.step_secs)

    @property
    def error_secs(self) -> float:
        """The standard error of `secs`, from the median deviation of the steps and the drift between trials."""
        deviation = statistics.median(abs(secs - self.secs) for secs in self.step_secs)
        of_median = MEDIAN_TO_MEAN * DEVIATIONS * deviation / math.sqrt(len(self.step_secs))
        return math.hypot(of_median, DRIFT_SHARE * self.secs)


@dataclass(frozen=True)
class Curve:
    """t(P) = theta0 + theta1 / P + theta2 · P, in seconds (Parallax, EuroSys 2019, section 3.2).

    The terms are the constant part, the work that pieces share in parallel, and the overhead of each piece.
    """

    theta0: float
    theta1: float
    theta2: float

    def secs(self, partitions: float) -> float:
        """Returns the time of a step with this number of pieces."""
        return self.theta0 + self.theta1 / partitions + self.theta2 * partitions


@dataclass(frozen=True)
class Choice:
    """The number of pieces to use for training.

    `trials` are in the order of measurement, and `curve` is None if there are too few trials. `secs` is the time of a
    step in the trial of this number, and `error_secs` is the standard error of that time.
    """

    partitions: int
    trials: tuple[Trial, ...]
    curve: Curve | None
    secs: float
    error_secs: float
