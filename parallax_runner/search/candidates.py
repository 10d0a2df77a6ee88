"""Chooses the number of pieces to try next: the number with the largest expected improvement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax_runner.search.fit import estimate, fit
from parallax_runner.search.trial import Trial

MOST_TRIALS = 8
# Expected improvements below this multiple of the best time's standard error are noise. If a number of pieces is
# equally fast and has the same error, its expected improvement is 0.4 standard errors by chance (the mean of the
# positive part of a normal distribution).
NOISE = 0.4
# The next number can be outside the tried range by at most this factor, because the curve is only a guess outside this
# range, and slow steps are costly.
REACH = 4


@dataclass(frozen=True)
class Range:
    """The numbers of pieces that can be tried: from `least` to `most`, beginning with `start`."""

    start: int
    least: int
    most: int

    def grid(self) -> list[int]:
        """Returns `start`, its repeated doublings and halvings within the bounds, and the bounds, in ascending
        order."""
        found = {self.start, self.least, self.most}
        above, below = self.start, self.start
        while (above := 2 * above) < self.most:
            found.add(above)
        while (below := below // 2) > self.least:
            found.add(below)
        return sorted(found)


def next_partitions(trials: Sequence[Trial], allowed: Range) -> int | None:
    """Returns the next number to try, or None if the search is finished.

    The search is finished after `MOST_TRIALS` trials, if no number is left, or if no expected improvement exceeds the
    noise of the best time.

    The expected improvement of a number (Jones and others 1998) is a mean over all curves that are possible given the
    trials. Each curve contributes the time that the number saves compared with the best number so far, or 0 if the
    number is slower. The expected improvement is high where the curve is low or uncertain. At least one number on each
    side of the start is tried, regardless of the curve. The reason is that, with fewer pieces than servers, fewer
    connections are in use, and the curve does not model this effect.
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
