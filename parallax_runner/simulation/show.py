"""Shows a simulation as a table, as Markdown and as a plot."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from parallax_runner.config.comm_mode import name_by_cost
from parallax_runner.files.whole import writing_whole
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.simulation.simulate import Point, Simulation, shown_numbers

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
        workers = [point.workers for point in points]
        rates = [(point.words_per_sec if has_words else point.examples_per_sec) or 0.0 for point in points]
        style = "--" if comm == name_by_cost() else "-"
        left.plot(workers, rates, style, label=comm)
        right.plot(workers, [100 * point.efficiency for point in points], style, label=comm)
    alone = next(point for point in simulation.points if point.workers == 1)
    most = max(point.workers for point in simulation.points)
    rate = (alone.words_per_sec if has_words else alone.examples_per_sec) or 0.0
    left.plot([1, most], [rate, rate * most], ":", color="0.5", label="ideal")
    right.plot([1, most], [100, 100], ":", color="0.5", label="ideal")
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
