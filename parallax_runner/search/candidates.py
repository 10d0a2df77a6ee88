"""Which number of pieces to try next: the one from which most is to be hoped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax_runner.search.fit import estimate, fit
from parallax_runner.search.trial import Trial

MOST_TRIALS = 8
# So many standard errors of the best time are noise: a number that is exactly as fast, and as badly known, promises 0.4
# of them by chance alone (the mean of the positive half of a normal distribution).
NOISE = 0.4
# How far beyond what was tried the next number may be, as a factor: the curve is a guess there, and bad steps cost.
REACH = 4


@dataclass(frozen=True)
class Range:
    """Numbers of pieces that may be tried, `least` to `most`, beginning with `start`."""

    start: int
    least: int
    most: int

    def grid(self) -> list[int]:
        """`start` doubled and halved again and again, and the bounds: ascending."""
        found = {self.start, self.least, self.most}
        above, below = self.start, self.start
        while (above := 2 * above) < self.most:
            found.add(above)
        while (below := below // 2) > self.least:
            found.add(below)
        return sorted(found)


def next_partitions(trials: Sequence[Trial], allowed: Range) -> int | None:
    """The next number to try after these; None where no other promises more than the noise of the best time.

    What a number promises is its expected improvement: the mean, over all curves that the trials leave possible, of how
    much faster it is than the best so far, nothing where it is slower (Jones and others 1998). It is high where the
    curve is low, and where little is known. On either side of the start at least one number is tried, whatever the
    curve says: with less than a piece a server fewer connections are in use, which it knows nothing of.
    """
    if not trials:
        return allowed.start
    if len(trials) >= MOST_TRIALS:
        return None
    tried = {trial.partitions for trial in trials}
    within = [
        number
        for number in allowed.grid()
        if number not in tried and min(tried) / REACH <= number <= max(tried) * REACH
    ]
    if not within:
        return None
    found = fit(tuple(trials))
    best_secs, error_secs = min(estimate(trial, found) for trial in trials)
    gains = {number: float(np.maximum(0.0, best_secs - found.secs(number)).mean()) for number in within}
    promising = max(within, key=gains.__getitem__)
    if gains[promising] > NOISE * error_secs:
        return promising
    below = [number for number in allowed.grid() if number < allowed.start]
    above = [number for number in allowed.grid() if number > allowed.start]
    for side in (below, above):
        if gains.keys() & side and not tried.intersection(side):
            return max(gains.keys() & side, key=gains.__getitem__)
    return None
