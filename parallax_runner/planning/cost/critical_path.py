"""How long a step takes if exchanges overlap with computing wherever results do not depend on it.

Two things go on side by side: computing, from 0 to 1, and one exchange after the other. Computing stops where it needs
values that are not there yet; a gradient is exchanged when it has appeared and the exchanges before it are done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Travel:
    """What one variable exchanges: values that computing needs from `needed_at` on, and a gradient that is there at
    `appears_at`, both as shares of all computing; seconds of each."""

    needed_at: float
    before_secs: float
    appears_at: float
    after_secs: float


def critical_path_secs(compute_secs: float, travels: Iterable[Travel]) -> float:
    """The time from the beginning of the first exchange to the end of all."""
    travels = list(travels)
    exchanged = 0.0
    reached = [(0.0, 0.0)]  # (share of computing, when it was done)
    for travel in sorted(travels, key=lambda travel: travel.needed_at):
        if travel.before_secs:
            exchanged += travel.before_secs
            now = max(_when(travel.needed_at, reached, compute_secs), exchanged)
            reached.append((travel.needed_at, now))
    for travel in sorted(travels, key=lambda travel: travel.appears_at):
        if travel.after_secs:
            exchanged = max(exchanged, _when(travel.appears_at, reached, compute_secs)) + travel.after_secs
    return max(exchanged, _when(1.0, reached, compute_secs))


def _when(share: float, reached: list[tuple[float, float]], compute_secs: float) -> float:
    """When a share of the computing is done, given when earlier ones were."""
    last, now = [point for point in reached if point[0] <= share][-1]
    return now + (share - last) * compute_secs
