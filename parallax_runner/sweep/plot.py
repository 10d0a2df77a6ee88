"""Draws the objectives of a sweep's jobs, the best at the top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.sweep.results import Result, heading_of_objective

FILE_NAME = "sweep.png"
MAX_JOBS = 60  # more would not be readable; those at the end of the ranking are left out
INCHES_PER_JOB = 0.3


def save(results: Sequence[Result], sweep_dir: Path) -> Path:
    """Writes `sweep.png`: a point a job on the axis of the objective, a cross for one that has not finished."""
    # Not pyplot: it keeps figures in global state and looks for a display.
    from matplotlib.figure import Figure

    shown = results[:MAX_JOBS]
    figure = Figure(figsize=(9, 1.5 + INCHES_PER_JOB * max(len(shown), 3)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    known = [(row, one.objective) for row, one in enumerate(shown) if one.rank and _is_finite(one.objective)]
    if known:
        rows, values = zip(*known, strict=True)
        axes.plot(values, rows, "o", color="tab:blue", label="finished")
    left = min((value for _, value in known if value is not None), default=0.0)
    unfinished = [(row, one) for row, one in enumerate(shown) if not (one.rank and _is_finite(one.objective))]
    if unfinished:
        axes.plot([left] * len(unfinished), [row for row, _ in unfinished], "x", color="tab:red", label="no objective")
        for row, one in unfinished:
            axes.annotate(one.status, (left, row), xytext=(8, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), [one.job for one in shown])
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)  # the first at the top
    axes.grid(axis="x", alpha=0.4)
    axes.set_xlabel(heading_of_objective(results))
    axes.set_title(f"{len(results)} jobs" + (f", the first {MAX_JOBS}" if len(results) > MAX_JOBS else ""))
    if unfinished and known:
        axes.legend(loc="best")
    path = sweep_dir / FILE_NAME
    figure.savefig(path)
    return path


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
