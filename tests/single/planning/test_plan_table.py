"""The table that people read before a run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from parallax_runner.analysis.variable_info import GradientKind, RowsWritten, VariableInfo
from parallax_runner.driver.report import show_plan
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.plan_table import plan_table
from tests.single.plans import plan_of


def variable(name: str, kind: str, shape: tuple[int, ...], rows: int | None = None) -> VariableInfo:
    return VariableInfo(
        name=name,
        full_name=name,
        pieces=1,
        shape=shape,
        dtype="float32",
        itemsize=4,
        gradient=GradientKind(kind),
        gradient_rows=rows,
        slots=(),
        nonlinear_op="norm/L2Loss" if kind == "sparse" else None,
        rows_written=RowsWritten({"sparse": "touched", "dense": "all"}.get(kind, "")),
    )


def made(rows: int | None = 50, *, comm: str = "hybrid", workers: int = 2) -> Plan:
    variables = [
        variable("embedding", "sparse", (40000, 128), rows),
        variable("kernel", "dense", (256, 1024)),
        variable("global_step", "none", ()),
    ]
    return plan_of(variables, comm=comm, workers=workers, partitions=3)


def cells_of(table: Table) -> dict[str, list[str]]:
    """Of each row that is as wide as the table: by its first cell the others."""
    text = io.StringIO()
    Console(file=text, width=300).print(table)
    cells = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in text.getvalue().splitlines()]
    return {line[0]: line[1:] for line in cells if len(line) == len(table.columns)}


def rows_of(plan: Plan) -> dict[str, list[str]]:
    return cells_of(plan_table(plan))


def test_a_row_a_variable() -> None:
    # 50 rows of 128 float32 and an id of 8 bytes, up and down: 52 kB; 2 (N - 1) / N of 1.05 MB.
    assert rows_of(made()) == {
        "embedding": ["40000×128", "20.5 MB", "sparse", "ps", "3", "server 0, server 1 ×2", "touched", "≤ 52 kB"],
        "kernel": ["256×1024", "1.05 MB", "dense", "allreduce", "1", "every rank", "all", "1.05 MB"],
        "global_step": ["scalar", "4 B", "none", "local", "1", "every rank", "", "0 B"],
        "all": ["", "21.5 MB", "", "", "", "", "", "≤ 1.1 MB"],
    }


def test_what_is_not_known_says_so() -> None:
    rows = rows_of(made(rows=None))
    assert rows["embedding"][-1] == rows["all"][-1] == "unknown"


def test_one_process() -> None:
    rows = rows_of(made(comm="local", workers=1))
    assert {row[5] for name, row in rows.items() if name != "all"} == {"the worker"}
    assert rows["embedding"][-1] == "0 B"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4700000, "4.7 MB"), (999600, "1 MB"), (2 * 10**12, "2 TB")],
)
def test_bytes_have_three_digits(number: int, text: str) -> None:
    assert format_bytes(number) == text


def test_notes_are_shown_below(capsys: pytest.CaptureFixture[str]) -> None:
    plan = made()
    assert plan.notes
    show_plan(plan)
    shown = capsys.readouterr().err
    assert "embedding" in shown
    for note in plan.notes:
        assert f"note: {note[:40]}" in shown
