"""The table and the sentences about the curves of an experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.results.curves import Curve, difference_from
from benchmarks.tables import Rows


def rows_of(curves: Sequence[Curve], metric: str) -> Rows:
    """Returns a row for each mode. The first curve's mode is the one that the others are compared with."""
    reference = curves[0]
    steps = reference.points[-1].step
    head = (
        "mode",
        f"{metric} after {reference.points[0].step} steps",
        f"{metric} after {steps} steps",
        f"largest difference from {reference.mode}",
        "seconds",
        f"time / {reference.mode}",
        "examples/s",
    )
    by_mode = {mode: [one for one in curves if one.mode == mode] for mode in dict.fromkeys(one.mode for one in curves)}
    body = []
    for mode, own in by_mode.items():
        values = (format(own[0].points[place].value, ".4f") for place in (0, -1))
        different = format(difference_from(reference, own), ".1e")
        secs = statistics.median(one.points[-1].secs for one in own)
        rate = statistics.median(one.examples_per_sec for one in own)
        shares = _shares(own, by_mode[reference.mode])
        body.append((mode, *values, different, f"{secs:.0f}", shares, f"{rate:,.0f}"))
    return Rows(head, tuple(body))


def sentences(facts: Mapping[str, float], curves: Sequence[Curve]) -> list[str]:
    """Returns the facts, and how busy the machine was."""
    loads = [one.load_average for one in curves]
    about = ", ".join(f"{name} {value:.6g}" for name, value in facts.items())
    return [f"{about}.", f"Load averages before the runs: {min(loads):.1f} to {max(loads):.1f}."]


def _shares(own: Sequence[Curve], reference: Sequence[Curve]) -> str:
    """Returns the times divided by those of the reference's mode in the same round: median (smallest – largest)."""
    secs = {one.round: one.points[-1].secs for one in reference}
    shares = [one.points[-1].secs / secs[one.round] for one in own]
    return f"{statistics.median(shares):.2f} ({min(shares):.2f} – {max(shares):.2f})"
