"""Draws the curves of all modes against steps and against time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.results.curves import Curve

# The curves coincide, so each is thinner than the one below it.
WIDEST = 9.0


def draw(curves: Sequence[Curve], metric: str, path: Path) -> None:
    """Writes a PNG: the first round against steps, and all rounds against time."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    modes = list(dict.fromkeys(curve.mode for curve in curves))
    for curve in curves:
        place = modes.index(curve.mode)
        values = [point.value for point in curve.points]
        by_time.plot([point.secs for point in curve.points], values, linewidth=1.2, color=f"C{place}")
        if curve.round == 0:
            width = WIDEST * (1 - place / len(modes))
            steps = [point.step for point in curve.points]
            by_step.plot(steps, values, linewidth=width, color=f"C{place}", label=curve.mode)
    by_step.set_xlabel("steps")
    by_time.set_xlabel("seconds, with validations (a line for each round)")
    by_step.set_ylabel(metric)
    by_step.legend()
    figure.savefig(path, dpi=90)
