"""Shows a simulation as a table, as Markdown and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from parallax_runner.config.comm_mode import name_by_cost
from parallax_runner.files.whole import writing_whole
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.simulation.simulation import Point, Simulation, shown_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES = (11.0, 4.5)
HEAD = (
    "workers",
    "comm",
    "step",
    "computing",
    "exchanges and updates",
    "throughput",
    "efficiency",
    "sent by a rank",
    "routes",
)


def rows(simulation: Simulation) -> list[tuple[str, ...]]:
    """Returns a row for each communication mode and each of the selected numbers of workers."""
    most = max(point.workers for point in simulation.points)
    shown = [
        point
        for number in shown_numbers(most)
        for comm in simulation.comms
        for point in simulation.points
        if (point.workers, point.comm) == (number, comm) and (number > 1 or comm == simulation.comms[0])
    ]
    return [_row(point) for point in shown]


def table(simulation: Simulation) -> Table:
    """Returns the table for the terminal."""
    found = Table(title="modelled, not measured", title_justify="left")
    for column in HEAD:
        found.add_column(column, justify="left" if column in ("comm", "routes") else "right")
    last = ""
    for row in rows(simulation):
        if row[0] != last and last:
            found.add_section()
        last = row[0]
        found.add_row(*row)
    return found


def markdown(simulation: Simulation) -> str:
    """Returns the same table as Markdown, followed by the assumptions."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(row)} |" for row in rows(simulation)]
    assumed = [f"- {assumption}" for assumption in simulation.assumptions]
    return "\n".join(["Modelled, not measured.", "", *lines, "", *assumed]) + "\n"


def draw(simulation: Simulation, path: Path, title: str) -> None:
    """Plots throughput and efficiency against the number of workers.

    The plot has a line for each communication mode, and a line for ideal scaling. `title` names the model and the
    links.
    """
    # pyplot is not used, because it would look for a display. The import is here because it is slow.
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    left, right = figure.subplots(1, 2)
    has_words = all(point.words_per_sec is not None for point in simulation.points)
    for comm in simulation.comms:
        points = [point for point in simulation.points if point.comm == comm]
        style = "--" if comm == name_by_cost() else "-"
        _draw_mode(points, left, right, style=style, in_words=has_words)
    _draw_ideal(simulation, left, right, in_words=has_words)
    left.set(xlabel="workers", ylabel="words/s" if has_words else "examples/s")
    right.set(xlabel="workers", ylabel="% of ideal throughput")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(f"{title}; modelled, not measured", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_whole(path) as file:
        figure.savefig(file, format="png", dpi=100)


def _draw_mode(points: Sequence[Point], throughput: Axes, efficiency: Axes, *, style: str, in_words: bool) -> None:
    """Draws the lines of the communication mode to which all points belong."""
    workers = [point.workers for point in points]
    rates = [_rate(point, in_words=in_words) for point in points]
    percents = [100 * point.efficiency for point in points]
    throughput.plot(workers, rates, style, label=points[0].comm)
    efficiency.plot(workers, percents, style, label=points[0].comm)


def _rate(point: Point, *, in_words: bool) -> float:
    """Returns words or examples per second, or 0.0 if the number is unknown."""
    rate = point.words_per_sec if in_words else point.examples_per_sec
    return rate or 0.0


def _draw_ideal(simulation: Simulation, throughput: Axes, efficiency: Axes, *, in_words: bool) -> None:
    alone = next(point for point in simulation.points if point.workers == 1)
    most = max(point.workers for point in simulation.points)
    rate = _rate(alone, in_words=in_words)
    throughput.plot([1, most], [rate, rate * most], ":", color="0.5", label="ideal")
    efficiency.plot([1, most], [100, 100], ":", color="0.5", label="ideal")


def _row(point: Point) -> tuple[str, ...]:
    words = point.words_per_sec is not None
    rate = point.words_per_sec if point.words_per_sec is not None else point.examples_per_sec
    return (
        str(point.workers),
        "one device" if point.workers == 1 else point.comm,
        f"{point.step_ms:.4g} ms",
        f"{point.compute_ms:.4g} ms",
        f"{point.exchange_ms:.4g} ms",
        f"{rate:,.0f} {'words' if words else 'examples'}/s",
        f"{100 * point.efficiency:.0f} %",
        format_bytes(point.sent_bytes),
        ", ".join(f"{route} {count}" for route, count in sorted(point.routes.items())),
    )
