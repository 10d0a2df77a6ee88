"""Formats results as a table for the terminal and as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.modes import ModeResult, Spread
from parallax_runner.plan.format_bytes import format_bytes

UNKNOWN = "unknown"
PLAIN_WIDTH = 140  # columns if the output is not a terminal


@dataclass(frozen=True)
class Rows:
    """A table. The first `left` columns contain words, and the other columns contain numbers."""

    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    left: int = 1


def rows_of_modes(results: Sequence[ModeResult]) -> Rows:
    """Returns one row per mode."""
    unit = results[0].unit
    head = ("mode", unit, "min – max", "share of ideal", "min – max", "ms a step", "bytes sent", "predicted")
    body = tuple(
        (
            result.mode,
            f"{result.rate.median:,.0f}",
            f"{result.rate.low:,.0f} – {result.rate.high:,.0f}",
            f"{result.share.median:.2f}",
            _span(result.share),
            f"{result.step_ms_p50:.1f}",
            format_bytes(round(result.sent_bytes)),
            str(result.predicted or UNKNOWN),
        )
        for result in results
    )
    return Rows(head, body)


def markdown(rows: Rows) -> str:
    """Returns the table as Markdown."""
    align = ["---" if number < rows.left else "---:" for number in range(len(rows.head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (rows.head, align, *rows.body)) + "\n"


def show(rows: Rows, title: str) -> None:
    """Prints the table."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(rows.head):
        table.add_column(name, justify="left" if number < rows.left else "right")
    for cells in rows.body:
        table.add_row(*cells)
    console.print(table)


def tell(line: str) -> None:
    """Prints a progress line."""
    print(line, file=sys.stderr, flush=True)


def write_section(path: Path, *, title: str, facts: Sequence[str], rows: Rows) -> None:
    """Writes a section to paste into docs/benchmarks.md."""
    path.write_text(
        f"### {title}\n\n" + "".join(f"{fact}\n" for fact in facts) + "\n" + markdown(rows), encoding="utf-8"
    )


def _span(spread: Spread) -> str:
    return f"{spread.low:.2f} – {spread.high:.2f}"
