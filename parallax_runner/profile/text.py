"""Writes a profile as text: tables of shares and of the heaviest ops."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from parallax_runner.files.whole import write_whole
from parallax_runner.profile.heaviest import OpTotals
from parallax_runner.profile.shares import MEANING, Part, StepShares

WIDTH = 160  # columns
HEAVIEST, TYPES, WAITED = 30, 15, 10  # rows

NOTES = (
    "Times include the overhead of a full trace. An op's time is the time in its kernel.",
    "Ops run in parallel, so the times in the tables of ops add up to more than a step. Each share is a fraction "
    "of the total time of all ops on all ranks and in all steps, without the ops that only wait.",
    "The parts of a step add up to its span, from the first op's start to the last op's end. A moment counts as the "
    "first part that applies:",
)


def write_text(path: Path, ranks: Sequence[StepShares], totals: OpTotals) -> None:
    """Writes the tables. `ranks` has one entry for each rank, which covers all profiled steps of the rank."""
    with io.StringIO() as file:
        console = Console(file=file, width=WIDTH, color_system=None)
        console.print(_shares(ranks))
        console.print(_heaviest(totals))
        console.print(_types(totals))
        if totals.heaviest(waiting=True):
            console.print(_waited(totals))
        for note in NOTES:
            console.print(note, highlight=False)
        for part, meaning in MEANING.items():
            console.print(f"  {part.value}: {meaning};", highlight=False)
        write_whole(path, file.getvalue())


def one_line(ranks: Sequence[StepShares]) -> str:
    """Returns the shares over all ranks, for example «compute 41%, communication 12%, …»."""
    span_ns = sum(one.span_ns for one in ranks)
    shares = {part: sum(one.parts_ns[part] for one in ranks) / span_ns for part in Part}
    return ", ".join(f"{part.value} {share:.0%}" for part, share in shares.items())


def _shares(ranks: Sequence[StepShares]) -> Table:
    table = Table(title="Where a step's time goes", title_justify="left")
    table.add_column("rank")
    numbers = ("steps", "ms per step", *(part.value for part in Part), "communicating, ms", "hidden behind compute")
    for title in numbers:
        table.add_column(title, justify="right")
    for one in ranks:
        steps = len(one.steps)
        hidden = one.hidden_ns / one.communication_ns if one.communication_ns else 0.0
        shares = [f"{one.share(part):.1%}" for part in Part]
        table.add_row(
            f"worker {one.rank}",
            str(steps),
            _ms(one.span_ns / steps),
            *shares,
            _ms(one.communication_ns / steps),
            f"{hidden:.1%}",
        )
    return table


def _heaviest(totals: OpTotals) -> Table:
    table = Table(title=f"The {HEAVIEST} heaviest ops", title_justify="left")
    for title in ("op", "type", "class", "device"):
        table.add_column(title, overflow="fold")
    for title in ("count", "total ms", "mean ms", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, total in totals.heaviest(waiting=False)[:HEAVIEST]:
        where, times = f"{name.process} {name.device}", (_ms(total.total_ns), _ms(total.mean_ns))
        share = f"{totals.share(total):.1%}"
        table.add_row(name.name, name.type, name.op_class.value, where, str(total.count), *times, share)
    return table


def _types(totals: OpTotals) -> Table:
    table = Table(title=f"The {TYPES} heaviest op types", title_justify="left")
    for title in ("type", "class"):
        table.add_column(title)
    for title in ("count", "total ms", "mean ms", "share"):
        table.add_column(title, justify="right")
    for (op_type, op_class), total in totals.by_type()[:TYPES]:
        times = (_ms(total.total_ns), _ms(total.mean_ns))
        table.add_row(op_type, op_class.value, str(total.count), *times, f"{totals.share(total):.1%}")
    return table


def _waited(totals: OpTotals) -> Table:
    table = Table(title="Ops that only wait for others", title_justify="left")
    for title in ("op", "type", "device"):
        table.add_column(title, overflow="fold")
    for title in ("count", "total ms", "mean ms"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, total in totals.heaviest(waiting=True)[:WAITED]:
        where, times = f"{name.process} {name.device}", (_ms(total.total_ns), _ms(total.mean_ns))
        table.add_row(name.name, name.type, where, str(total.count), *times)
    return table


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"
