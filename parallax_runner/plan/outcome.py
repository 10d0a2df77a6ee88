"""Compares the predictions of a plan with the measurements of its run."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from parallax_runner.files.whole import write_whole
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan

FILE_NAME = "plan_measured.json"
MAX_ROWS = 10  # maximum number of variables in the table


@dataclass(frozen=True)
class VariableOutcome:
    """The number of bytes that each rank sends in a step for a variable in the plan, or None if the number is
    unknown."""

    name: str
    route: str
    predicted_sent_bytes: int | None
    measured_sent_bytes: float | None


@dataclass(frozen=True)
class Outcome:
    """The time in milliseconds and the bytes of a step, as predicted by the model and as measured in the run. Unknown
    values are None.

    Bytes are per step and rank. Measured bytes are computed from the shapes of the exchanged tensors. Each entry of
    `variables` contains the bytes of one variable. `measured_other_bytes` are bytes that cannot be assigned to a single
    variable. `rows_measured` and `constants` are copied from the plan.
    """

    comm: str
    workers: int
    servers: int
    predicted_step_ms: float | None
    measured_step_ms: float | None
    predicted_sent_bytes: int | None
    measured_sent_bytes: float | None
    measured_other_bytes: float | None
    variables: tuple[VariableOutcome, ...]
    rows_measured: str | None
    constants: str

    @classmethod
    def of(
        cls, plan: Plan, sent: Sequence[Sequence[float]], *, step_ms: float | None, sent_bytes: float | None
    ) -> Outcome:
        """Returns the outcome of a run.

        For each rank, `sent` contains the mean bytes per step for each variable, in the plan's order. The last entry
        contains the bytes that belong to no single variable. `step_ms` and `sent_bytes` are the values measured in the
        run.
        """
        *measured, other = _means(sent, len(plan.variables) + 1)
        variables = tuple(
            VariableOutcome(variable.name, variable.route, variable.sent_bytes_per_step, own_bytes)
            for variable, own_bytes in zip(plan.variables, measured, strict=True)
        )
        return cls(
            comm=plan.comm,
            workers=plan.workers,
            servers=plan.servers,
            predicted_step_ms=plan.predicted.step_ms,
            measured_step_ms=step_ms,
            predicted_sent_bytes=plan.sent_bytes_per_step,
            measured_sent_bytes=sent_bytes,
            measured_other_bytes=other,
            variables=variables,
            rows_measured=plan.rows_measured,
            constants=plan.constants,
        )


def save(outcome: Outcome, run_dir: Path) -> Path:
    """Writes `run_dir/plan_measured.json`."""
    path = run_dir / FILE_NAME
    write_whole(path, json.dumps(dataclasses.asdict(outcome), indent=1) + "\n")
    return path


def outcome_table(outcome: Outcome) -> Table:
    """Returns a table with a step's time and bytes.

    The other rows show the bytes for each of the variables with the most bytes, and the total for all other variables.
    """
    table = Table(title=f"predicted (constants: {outcome.constants}) and measured", title_justify="left")
    for column in ("a step", "predicted", "measured", "measured / predicted"):
        table.add_column(column, justify="left" if column == "a step" else "right")
    ms = (outcome.predicted_step_ms, outcome.measured_step_ms)
    table.add_row("time", *("unknown" if one is None else f"{one:.4g} ms" for one in ms), _ratio(*ms))
    _add_bytes(table, "sent by a rank", outcome.predicted_sent_bytes, outcome.measured_sent_bytes)
    table.add_section()
    sending = sorted((one for one in outcome.variables if _size(one) != 0), key=_size, reverse=True)
    for one in sending[:MAX_ROWS]:
        _add_bytes(table, f"{one.name} by {one.route}", one.predicted_sent_bytes, one.measured_sent_bytes)
    _add_others(table, sending[MAX_ROWS:])
    if outcome.measured_other_bytes:
        _add_bytes(table, "not assigned to a variable", 0, outcome.measured_other_bytes)
    return table


def _add_others(table: Table, others: Sequence[VariableOutcome]) -> None:
    """Adds a row with the total bytes of the variables that have no row of their own."""
    if others:
        predicted = _total([one.predicted_sent_bytes for one in others])
        measured = _total([one.measured_sent_bytes for one in others])
        _add_bytes(table, f"{len(others)} others", predicted, measured)


def _add_bytes(table: Table, name: str, predicted: float | None, measured: float | None) -> None:
    told = ["unknown" if one is None else format_bytes(round(one)) for one in (predicted, measured)]
    table.add_row(name, *told, _ratio(predicted, measured))


def _size(variable: VariableOutcome) -> float:
    """Returns the sort key of a row, or infinity if its bytes are unknown."""
    numbers = (variable.predicted_sent_bytes, variable.measured_sent_bytes)
    return max((number for number in numbers if number is not None), default=math.inf)


def _total(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _means(of_ranks: Sequence[Sequence[float]], number: int) -> list[float | None]:
    """Returns a list of `number` means over ranks. If no rank has reported, all elements are None."""
    if not of_ranks:
        return [None] * number
    return [statistics.fmean(numbers) for numbers in zip(*of_ranks, strict=True)]


def _ratio(predicted: float | None, measured: float | None) -> str:
    return f"{measured / predicted:.2f}" if predicted and measured is not None else ""
