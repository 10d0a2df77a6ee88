"""Selects the steps that are profiled."""

from __future__ import annotations

from collections.abc import Container

from parallax_runner.config.schema import ProfileConfig


def profiled_steps(profile: ProfileConfig) -> Container[int]:
    """Returns the numbers of the profiled steps, counted from 1 as in `train.steps`. Membership tests take constant
    time."""
    if profile.name == "steps":
        return frozenset(profile.steps)
    if profile.name == "range":
        return range(*profile.range)
    return frozenset()


def listed_until(profile: ProfileConfig, last: int) -> list[int]:
    """Returns the steps to profile, up to and including step `last`, in ascending order."""
    if profile.name == "range":
        start, end = profile.range
        return list(range(start, min(end, last + 1)))
    return sorted({step for step in profile.steps if step <= last})
