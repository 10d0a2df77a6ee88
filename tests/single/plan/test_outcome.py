"""Predicted beside measured, for each variable."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from parallax_runner.driver.report import leave_outcome
from parallax_runner.driver.run_summary import RunSummary
from parallax_runner.plan import outcome
from parallax_runner.plan.outcome import MAX_ROWS, Outcome, outcome_table
from parallax_runner.plan.plan import Plan
from tests.single.planning.test_planner import DENSE, NONE, SPARSE, plan

# Of DENSE, SPARSE and NONE, in the plan's order, and last of none of them alone.
OF_RANKS = [[3000.0, 1000.0, 0.0, 4.0], [3000.0, 3000.0, 0.0, 4.0]]
MEASURED = {"step_ms": 20.0, "sent_bytes": 5004.0}
SUMMARY = RunSummary("finished", "train", "hybrid", "m", 2, step_ms_p50=20.0, sent_bytes_per_step=5004.0)


def made() -> Outcome:
    return Outcome.of(plan(DENSE, SPARSE, NONE), OF_RANKS, **MEASURED)


def rows_of(found: Outcome) -> list[list[str]]:
    text = io.StringIO()
    Console(file=text, width=200).print(outcome_table(found))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.getvalue().splitlines()]
    return [line for line in cells if len(line) == 4]


def test_each_variable_has_its_own_bytes() -> None:
    """The mean over ranks; the plan predicts 4000 and 4800 (test_planner.py)."""
    found = made()
    bytes_of = {one.name: (one.route, one.predicted_sent_bytes, one.measured_sent_bytes) for one in found.variables}
    assert bytes_of == {
        DENSE.name: ("allreduce", 4000, 3000),
        SPARSE.name: ("ps", 4800, 2000),
        NONE.name: ("local", 0, 0),
    }
    assert found.measured_other_bytes == 4


def test_the_largest_first_and_none_that_sends_nothing() -> None:
    assert rows_of(made())[1:] == [
        ["sent by a rank", "8.8 kB", "5 kB", "0.57"],
        [f"{SPARSE.name} by ps", "4.8 kB", "2 kB", "0.42"],
        [f"{DENSE.name} by allreduce", "4 kB", "3 kB", "0.75"],
        ["not assigned to a variable", "0 B", "4 B", ""],
    ]


def many(number: int, *, known: bool = True) -> Plan:
    """`number` variables of 1000, 2000, … bytes."""
    wide = plan(DENSE)
    (variable,) = wide.variables
    each = [
        dataclasses.replace(variable, name=f"v{n}", sent_bytes_per_step=1000 * n if known else None)
        for n in range(1, number + 1)
    ]
    return dataclasses.replace(wide, variables=tuple(each))


def test_many_variables_share_a_row() -> None:
    number = MAX_ROWS + 2
    sent = [500.0 * n for n in range(1, number + 1)]
    rows = rows_of(Outcome.of(many(number), [[*sent, 0.0]], **MEASURED))[2:]
    assert [row[0] for row in rows] == [
        *(f"v{n} by allreduce" for n in range(number, number - MAX_ROWS, -1)),
        "2 others",
    ]
    assert rows[-1] == ["2 others", "3 kB", "1.5 kB", "0.50"]


def test_what_is_not_known_says_so() -> None:
    assert {one.measured_sent_bytes for one in Outcome.of(many(1), [], **MEASURED).variables} == {None}
    rows = rows_of(Outcome.of(many(MAX_ROWS + 2, known=False), [], step_ms=None, sent_bytes=None))
    assert {tuple(row[1:]) for row in rows[2:]} == {("unknown", "unknown", "")}


@pytest.mark.parametrize("done", [{0: {}, 1: {}}, {}])
def test_a_run_without_a_step_leaves_what_was_predicted(done: dict[int, dict], tmp_path: Path) -> None:
    leave_outcome(plan(DENSE, SPARSE), RunSummary("finished", "train", "hybrid", "m", 2), done, tmp_path)
    found = json.loads((tmp_path / outcome.FILE_NAME).read_text())
    assert [one["predicted_sent_bytes"] for one in found["variables"]] == [4000, 4800]
    assert [one["measured_sent_bytes"] for one in found["variables"]] == [None, None]


def test_the_file_has_what_the_ranks_have_measured(tmp_path: Path) -> None:
    done = {rank: {"sent_bytes_by_variable": sent} for rank, sent in enumerate(OF_RANKS)}
    leave_outcome(plan(DENSE, SPARSE, NONE), SUMMARY, done, tmp_path)
    found = json.loads((tmp_path / outcome.FILE_NAME).read_text())
    measured = [one["measured_sent_bytes"] for one in found["variables"]]
    assert measured == [3000, 2000, 0]
    assert sum(measured) + found["measured_other_bytes"] == found["measured_sent_bytes"]
