"""The nouns of a search: what was measured, the curve through it, and what was chosen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Trial:
    """Some steps with sparse variables in `partitions` pieces; `step_secs` are the seconds of each measured step."""

    partitions: int
    step_secs: tuple[float, ...]

    @classmethod
    def of(cls, partitions: int, by_rank: Mapping[int, Sequence[float]]) -> Self:
        """From the seconds of all steps on each rank: the first half is warm-up, of the others the mean over ranks.

        A synchronous step ends for all together, so that the mean is its time, whoever waited for whom; without
        waiting it is the pace of the cluster.
        """
        steps = [statistics.fmean(secs) for secs in zip(*by_rank.values(), strict=True)]
        return cls(partitions, tuple(steps[len(steps) // 2 :]))

    @property
    def secs(self) -> float:
        """The step's time: the median, which a pause of the machine in one of the steps does not move."""
        return statistics.median(self.step_secs)


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
    """The number of pieces to train with; `trials` in the order they were made, `curve` None where they are too few."""

    partitions: int
    trials: tuple[Trial, ...]
    curve: Curve | None

    @property
    def secs(self) -> float:
        """The time that a step should take: as the curve says, or else as measured."""
        if self.curve is not None:
            return self.curve.secs(self.partitions)
        return next(trial.secs for trial in self.trials if trial.partitions == self.partitions)
