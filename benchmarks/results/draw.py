"""Draws the curves of all modes against steps and against time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.results.curves import Curve

# The curves coincide, so each is thinner than the one below it.
WIDEST = 9.0


def draw(curves: Sequence[Curve], metric: str, path: Path, caption: str) -> None:
    """Writes a PNG."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for place, curve in enumerate(curves):
        values = [point.value for point in curve.points]
        width = WIDEST * (1 - place / len(curves))
        by_step.plot([point.step for point in curve.points], values, linewidth=width, label=curve.mode)
        by_time.plot([point.secs for point in curve.points], values, linewidth=2, label=curve.mode)
    by_step.set_xlabel("steps")
    by_time.set_xlabel("seconds after the first step, with validations")
    by_step.set_ylabel(metric)
    by_step.legend()
    figure.suptitle(caption, fontsize=8, wrap=True)
    figure.savefig(path, dpi=100)
