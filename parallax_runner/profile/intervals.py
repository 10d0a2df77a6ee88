"""Represents sets of points in time as ascending lists of (start, end) intervals that do not touch.

Asynchronous ops overlap, so their lengths cannot simply be summed.
"""

from __future__ import annotations

from collections.abc import Iterable

Intervals = list[tuple[int, int]]


def union(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Returns the set of times that are in at least one of the intervals. Drops empty intervals."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Intervals) -> int:
    """Returns the total length of a set."""
    return sum(end - start for start, end in intervals)


def overlap(one: Intervals, other: Intervals) -> int:
    """Returns the total length of the times that are in both sets."""
    return length(one) + length(other) - length(union([*one, *other]))
