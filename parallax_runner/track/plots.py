"""Plots the loss and throughput of a run over its steps. Imports matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parallax_runner.files.whole import writing_whole
from parallax_runner.track.scale import MARGIN, calm_limits
from parallax_runner.track.tracker import History

FOLDER = "plots"
LOSSES = {"train/loss": "training", "validation/loss": "validation"}
# The throughput plot shows the first of these metrics that the run has recorded.
THROUGHPUTS = {
    "throughput/words_per_sec": "words/s",
    "throughput/examples_per_sec": "examples/s",
    "throughput/steps_per_sec": "steps/s",
}
STALENESS = "staleness/"
SIZE_INCHES = (7.0, 4.0)
# A line with at most this many points has a marker at each point.
MARKED_POINTS = 50
ENOUGH_POINTS = 3

Points = Sequence[tuple[int, float]]


def plot_run(run_dir: Path, history: History) -> list[Path]:
    """Plots the run's history to `plots/loss.png` and `plots/throughput.png`, and returns the paths of the plots.

    The throughput plot omits the slow first report if there are at least three reports. After asynchronous training,
    `plots/staleness.png` is also written. Metrics that were not recorded are not plotted. Raises OSError if the folder
    cannot be written.
    """
    series, title = history.metrics, _title(history.tags)
    losses = {label: series[key] for key, label in LOSSES.items() if key in series}
    throughput = next((key for key in THROUGHPUTS if key in series), None)
    drawn = []
    if losses:
        drawn.append(_draw(run_dir, "loss", losses, title=title, label="loss (mean over a global batch)"))
    if throughput is not None:
        label = f"{THROUGHPUTS[throughput]}, all workers"
        points = _without_start(series[throughput])
        drawn.append(_draw(run_dir, "throughput", {"": points}, title=title, label=label, from_zero=True))
    bins = {key.removeprefix(STALENESS): points[-1][1] for key, points in series.items() if key.startswith(STALENESS)}
    if bins:
        drawn.append(_draw_staleness(run_dir, bins, title=title))
    return drawn


def _without_start(points: Points) -> Points:
    """Omits the first report if there are enough points, because its steps include setup."""
    return points[1:] if len(points) >= ENOUGH_POINTS else points


def _draw_staleness(run_dir: Path, bins: Mapping[str, float], *, title: str) -> Path:
    """Draws a histogram of staleness, the number of pushes by other replicas between a replica's pull and its own
    push."""
    counts = {name.replace("_or_more", "+"): count for name, count in bins.items() if name[0].isdigit()}
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.bar(list(counts), list(counts.values()))
    axes.set(xlabel="pushes by other replicas between a replica's pull and push", ylabel="pushes")
    axes.set_title(title, fontsize="small")
    path = run_dir / FOLDER / "staleness.png"
    path.parent.mkdir(exist_ok=True)
    with writing_whole(path) as file:
        figure.savefig(file, format="png", dpi=100)
    return path


def _title(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {tags[name]}" for name in ("model", "comm", "workers") if name in tags)


def _draw(
    run_dir: Path, name: str, lines: Mapping[str, Points], *, title: str, label: str, from_zero: bool = False
) -> Path:
    """Draws one line for each entry of `lines`, labelled with the entry's key. A non-finite value leaves a gap in the
    line."""
    # This function does not use pyplot, which looks for a display and keeps the figure in memory.
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for (line_name, points), style in zip(lines.items(), itertools.cycle(["-", "--"])):
        steps, values = zip(*points, strict=True)
        shown = [value if math.isfinite(value) else math.nan for value in values]
        marker = "o" if len(points) <= MARKED_POINTS else ""
        axes.plot(steps, shown, style, marker=marker, markersize=3, label=line_name)
    axes.set(xlabel="step", ylabel=label)
    axes.set_title(title, fontsize="small")
    axes.grid(alpha=0.3)
    limits = _limits(axes, lines, from_zero=from_zero)
    if limits is not None:
        axes.set_ylim(*limits)
    if len(lines) > 1:
        axes.legend()
    path = run_dir / FOLDER / f"{name}.png"
    path.parent.mkdir(exist_ok=True)
    with writing_whole(path) as file:
        figure.savefig(file, format="png", dpi=100)
    return path


def _limits(axes: Axes, lines: Mapping[str, Points], *, from_zero: bool) -> tuple[float, float] | None:
    """Returns the range of the vertical axis, or None for Matplotlib's own range."""
    if from_zero:
        return 0.0, axes.dataLim.y1 * (1 + MARGIN) or 1
    return calm_limits(value for points in lines.values() for _, value in points)
