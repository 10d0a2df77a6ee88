"""Chooses the number of pieces to try next: around the fastest number, and at the lowest point of the curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.search.fit_curve import curve_of, fastest
from parallax_runner.search.trial import Trial

MOST_TRIALS = 8
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

    The search tries the start, its double and its half. From then on, it tries the lowest point of the fitted curve,
    and then the numbers next to the fastest number, above and below. The search is finished after `MOST_TRIALS` trials,
    or if all of these numbers were tried. Both sides of the start are tried, regardless of the times. The reason is
    that, with fewer pieces than servers, fewer connections are in use, and the curve does not model this effect.
    """
    if not trials:
        return allowed.start
    if len(trials) >= MOST_TRIALS:
        return None
    tried = {trial.partitions for trial in trials}
    grid = allowed.grid()
    wanted = [
        *_beside(allowed.start, grid),
        *_lowest(trials, grid),
        *_beside(fastest(trials).partitions, grid),
    ]
    return next((number for number in wanted if number not in tried), None)


def _beside(number: int, grid: Sequence[int]) -> list[int]:
    """Returns the next larger number of the grid, and then the next smaller number, if they exist."""
    above = [other for other in grid if other > number]
    below = [other for other in grid if other < number]
    return above[:1] + below[-1:]


def _lowest(trials: Sequence[Trial], grid: Sequence[int]) -> list[int]:
    """Returns the number of the grid for which the curve is lowest, within reach of the tried numbers. Returns an empty
    list if there are too few trials for a curve."""
    curve = curve_of(trials)
    if curve is None:
        return []
    tried = [trial.partitions for trial in trials]
    within = [number for number in grid if min(tried) / REACH <= number <= max(tried) * REACH]
    return [min(within, key=curve.secs)]
