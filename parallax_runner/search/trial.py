"""The nouns of a search: what was measured, the curve through it, and what was chosen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

# Of each trial: the first steps of a session pay for its set-up.
WARM_UP_STEPS = 5
# Behind them; of one alone nobody would know how far to trust it.
LEAST_STEPS = 2
# Two trials of one number differ by so much of a step's time though all their steps agree: other loads, other data.
DRIFT_SHARE = 0.01
# Of a normal distribution: the standard deviation is so many median deviations, and a median's error so many of a
# mean's.
DEVIATIONS, MEDIAN_TO_MEAN = 1.4826, 1.2533


@dataclass(frozen=True)
class Trial:
    """Some steps with sparse variables in `partitions` pieces; `step_secs` are the seconds of each measured step."""

    partitions: int
    step_secs: tuple[float, ...]

    @classmethod
    def of(cls, partitions: int, by_rank: Mapping[int, Sequence[float]]) -> Self:
        """From the seconds of all steps on each rank: but for the first ones, of each step those of the slowest rank,
        which a synchronous step takes."""
        steps = [max(secs) for secs in zip(*by_rank.values(), strict=False)]
        return cls(partitions, tuple(steps[min(WARM_UP_STEPS, len(steps) - 1) :]))

    @property
    def secs(self) -> float:
        """The step's time: the median, which a pause of the machine in one of the steps does not move."""
        return statistics.median(self.step_secs)

    @property
    def error_secs(self) -> float:
        """The standard error of `secs`: of the median, by the steps' median deviation, and what trials drift by."""
        deviation = statistics.median(abs(secs - self.secs) for secs in self.step_secs)
        of_median = MEDIAN_TO_MEAN * DEVIATIONS * deviation / math.sqrt(len(self.step_secs))
        return math.hypot(of_median, DRIFT_SHARE * self.secs)


@dataclass(frozen=True)
class Curve:
    """t(P) = theta0 + theta1 / P + theta2 · P, in seconds: what no splitting changes, what pieces do side by side, and
    what each piece costs (Parallax, EuroSys 2019, section 3.2)."""

    theta0: float
    theta1: float
    theta2: float

    def secs(self, partitions: float) -> float:
        """The step's time with so many pieces."""
        return self.theta0 + self.theta1 / partitions + self.theta2 * partitions


@dataclass(frozen=True)
class Choice:
    """The number of pieces to train with; `trials` in the order they were made, `curve` None where they are too few.
    `secs` is what a step should take with it, by the trial of that number and the curve, and `error_secs` its standard
    error."""

    partitions: int
    trials: tuple[Trial, ...]
    curve: Curve | None
    secs: float
    error_secs: float
