"""Which number of pieces to try next: doubled while the step's time falls, then halved from the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

# The curve has as many unknowns.
LEAST_POINTS = 3


@dataclass(frozen=True)
class Range:
    """Numbers of pieces that may be tried, `least` to `most`, beginning with `start`."""

    start: int
    least: int
    most: int


def next_partitions(secs: Mapping[int, float], allowed: Range) -> int | None:
    """The next number to try after those whose times are in `secs`; None where the search is at its end.

    The original stops as soon as the time rises; here three points are measured where the range has them, since one
    slow first trial would otherwise end the search without a curve.
    """
    if allowed.start not in secs:
        return allowed.start
    ways = (lambda number: min(2 * number, allowed.most), lambda number: max(number // 2, allowed.least))
    for way in ways:
        further, falls = _beyond(secs, allowed.start, way)
        if further is not None and falls:
            return further
    if len(secs) < LEAST_POINTS:
        return next((further for way in ways if (further := _beyond(secs, allowed.start, way)[0]) is not None), None)
    return None


def _beyond(secs: Mapping[int, float], start: int, way: Callable[[int], int]) -> tuple[int | None, bool]:
    """The first number that way which was not tried, None at the range's end; and whether the last step fell."""
    before = number = start
    while (further := way(number)) in secs and further != number:
        before, number = number, further
    falls = number == start or secs[number] < secs[before]
    return None if further == number else further, falls
