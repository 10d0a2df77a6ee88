"""Computes the speed of several runs during the time in which all train, from the times of their progress reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Told:
    """A progress report: a run was at `step` at the time `secs`, on a clock that all runs share."""

    step: int
    secs: float


@dataclass(frozen=True)
class Common:
    """`steps_per_sec` of each run while all runs trained. `share` is the fraction of the total training time in which
    all runs trained."""

    steps_per_sec: tuple[float, ...]
    share: float


def over_common_time(runs: Sequence[Sequence[Told]], warm_up_steps: int) -> Common:
    """Computes the speeds from each run's reports, starting at step `warm_up_steps`. Raises ValueError if the runs did
    not train at the same time."""
    measured = [[told for told in run if told.step >= warm_up_steps] for run in runs]
    if any(len(run) < 2 for run in measured):
        raise ValueError(f"a run has fewer than two reports from step {warm_up_steps} on: give it more steps")
    begin, end = max(run[0].secs for run in measured), min(run[-1].secs for run in measured)
    if end <= begin:
        raise ValueError("the runs did not train at the same time: give them more steps")
    whole = max(run[-1].secs for run in measured) - min(run[0].secs for run in measured)
    rates = tuple((step_at(run, end) - step_at(run, begin)) / (end - begin) for run in measured)
    return Common(rates, (end - begin) / whole)


def step_at(run: Sequence[Told], secs: float) -> float:
    """Returns the number of steps done at a time between the first and last report, by linear interpolation."""
    for before, after in pairwise(run):
        if before.secs <= secs <= after.secs:
            width = after.secs - before.secs
            return before.step + (after.step - before.step) * ((secs - before.secs) / width if width else 1.0)
    raise ValueError(f"{secs} s is outside the run's reports")
