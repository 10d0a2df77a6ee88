"""Sets of times, as lists of (start, end) that ascend and do not touch: async ops overlap, so lengths do not add up."""

from __future__ import annotations

from collections.abc import Iterable

Intervals = list[tuple[int, int]]


def union(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """The times that are in any of them; empty ones vanish."""
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
    """The time that a set has in all."""
    return sum(end - start for start, end in intervals)


def overlap(one: Intervals, other: Intervals) -> int:
    """The time that is in both sets."""
    return length(one) + length(other) - length(union([*one, *other]))
