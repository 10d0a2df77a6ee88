"""The time of a step whose exchanges overlap with all computation that does not depend on them.

Two activities run in parallel: the computation, whose progress runs from 0 to 1, and a sequence of exchanges. The
computation waits for values that have not arrived yet. A gradient is exchanged after it has been computed and all
earlier exchanges are done. Exchanges for another step (docs/design/0052-rows-ahead-of-time.md) fill the gaps in this
sequence. No computation waits for them, so they lengthen a step only if the gaps are too short.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Travel:
    """The exchanges of one variable, with their durations in seconds.

    The variable's values are first needed at `needed_at`, and its gradient is complete at `appears_at`. Both are
    fractions of the whole computation. `aside_secs` is the duration of exchanges for the next step.
    """

    needed_at: float
    before_secs: float
    appears_at: float
    after_secs: float
    aside_secs: float = 0.0


def critical_path_secs(compute_secs: float, travels: Iterable[Travel]) -> float:
    """Returns the time from the start of the first exchange to the end of the step."""
    travels = list(travels)
    exchanged = 0.0
    reached = [(0.0, 0.0)]  # (fraction of the computation, time at which it was done)
    for travel in sorted(travels, key=lambda travel: travel.needed_at):
        if travel.before_secs:
            exchanged += travel.before_secs
            now = max(_when(travel.needed_at, reached, compute_secs), exchanged)
            reached.append((travel.needed_at, now))
    for travel in sorted(travels, key=lambda travel: travel.appears_at):
        if travel.after_secs:
            exchanged = max(exchanged, _when(travel.appears_at, reached, compute_secs)) + travel.after_secs
    in_sequence_secs = sum(travel.before_secs + travel.after_secs + travel.aside_secs for travel in travels)
    return max(exchanged, _when(1.0, reached, compute_secs), in_sequence_secs)


def _when(share: float, reached: list[tuple[float, float]], compute_secs: float) -> float:
    """Returns the time when a fraction of the computation is done, given the times of earlier fractions."""
    last, now = [point for point in reached if point[0] <= share][-1]
    return now + (share - last) * compute_secs
