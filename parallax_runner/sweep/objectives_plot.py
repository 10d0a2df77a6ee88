"""Plots the objectives of a sweep's jobs, group by group, with the best job at the top."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.files.whole import writing_whole
from parallax_runner.sweep.groups import Group, grouped
from parallax_runner.sweep.results import Result, heading_of_objective
from parallax_runner.track.scale import calm_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE_NAME = "sweep.png"
MAX_JOBS = 60  # a plot of more jobs is unreadable, so the worst jobs are omitted
INCHES_PER_JOB = 0.3
COLORS = 10  # number of colors in matplotlib's cycle; further groups reuse them
BESIDE: dict[str, Any] = {
    **{"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"},
    "bbox": {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
}


def save(results: Sequence[Result], sweep_dir: Path) -> Path:
    """Writes `sweep.png`, which shows each job as a point labelled with its objective, or as a cross if the job has no
    finite objective or is not ranked. In a sweep over several keys, a line marks the mean of each group that has
    several points."""
    # This function does not use pyplot, which keeps figures in global state and looks for a display.
    from matplotlib.figure import Figure

    groups = grouped(results[:MAX_JOBS])
    shown = [one for group in groups for one in group.results]
    figure = Figure(figsize=(9, 1.5 + INCHES_PER_JOB * max(len(shown), 3)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    limits = calm_limits(value for one in shown if (value := _value(one)) is not None) or (0.0, 1.0)
    first = 0
    for number, group in enumerate(groups):
        _draw(axes, group, first, f"C{number % COLORS}", crosses_at=limits[0])
        first += len(group.results)
        if first < len(shown):
            axes.axhline(first - 0.5, color="0.85", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [one.job for one in shown])
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)  # the first job is at the top
    room = 0.12 * (limits[1] - limits[0])  # space for the label next to the rightmost point
    axes.set_xlim(limits[0], limits[1] + room)
    axes.grid(axis="x", alpha=0.4)
    axes.set_xlabel(heading_of_objective(results))
    axes.set_title(f"{len(results)} jobs" + (f", the first {MAX_JOBS}" if len(results) > MAX_JOBS else ""))
    path = sweep_dir / FILE_NAME
    with writing_whole(path) as file:
        figure.savefig(file, format="png")
    return path


def _draw(axes: Axes, group: Group, first: int, color: str, *, crosses_at: float) -> None:
    """Draws a group's jobs in consecutive rows, starting with row `first`."""
    known: list[float] = []
    for row, one in enumerate(group.results, start=first):
        value = _value(one)
        if value is None:
            axes.plot([crosses_at], [row], "x", color="tab:red", clip_on=False)
            axes.annotate(f"{one.status}, no objective", (crosses_at, row), color="tab:red", **BESIDE)
        else:
            known.append(value)
            axes.plot([value], [row], "o", color=color)
            axes.annotate(f"{value:.5g}", (value, row), **BESIDE)
    if len(known) > 1 and group.name:
        mean = statistics.fmean(known)
        axes.plot([mean, mean], [first - 0.4, first + len(group.results) - 0.6], "-", color=color, alpha=0.5)


def _value(one: Result) -> float | None:
    """Returns the objective if the job has a rank and the objective is finite, else None."""
    return one.objective if one.rank and one.objective is not None and math.isfinite(one.objective) else None
