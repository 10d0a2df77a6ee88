"""What a plan predicted beside what its run measured."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from parallax_runner.plan.plan import Plan
from parallax_runner.plan.table import format_bytes

FILE_NAME = "plan_measured.json"


@dataclass(frozen=True)
class Outcome:
    """Milliseconds and bytes of a step, predicted by the model and measured by the run; None for what is not known.

    Bytes are what a rank's share of a step sends, measured from the shapes of what was handed over; `bytes_by_route`
    is the prediction's. `rows_measured` and `constants` are the plan's.
    """

    comm: str
    workers: int
    servers: int
    predicted_step_ms: float | None
    measured_step_ms: float | None
    predicted_sent_bytes: int | None
    measured_sent_bytes: float | None
    bytes_by_route: Mapping[str, int | None]
    rows_measured: bool
    constants: str

    @classmethod
    def of(cls, plan: Plan, summary: Mapping[str, Any]) -> Outcome:
        """`summary` is that of the run."""
        by_route: dict[str, int | None] = defaultdict(int)
        for variable in plan.variables:
            before, more = by_route[variable.route.value], variable.sent_bytes_per_step
            by_route[variable.route.value] = None if before is None or more is None else before + more
        return cls(
            comm=plan.comm,
            workers=plan.workers,
            servers=plan.servers,
            predicted_step_ms=plan.predicted.step_ms,
            measured_step_ms=summary.get("step_ms_p50"),
            predicted_sent_bytes=plan.sent_bytes_per_step,
            measured_sent_bytes=summary.get("sent_bytes_per_step"),
            bytes_by_route=dict(by_route),
            rows_measured=plan.rows_measured,
            constants=plan.constants,
        )


def save(outcome: Outcome, run_dir: Path) -> Path:
    """Writes `run_dir/plan_measured.json`."""
    path = run_dir / FILE_NAME
    path.write_text(json.dumps(dataclasses.asdict(outcome), indent=1) + "\n", encoding="utf-8")
    return path


def outcome_table(outcome: Outcome) -> Table:
    """Two rows: a step's time and bytes."""
    table = Table(title=f"predicted (constants: {outcome.constants}) and measured", title_justify="left")
    for column in ("a step", "predicted", "measured", "measured / predicted"):
        table.add_column(column, justify="left" if column == "a step" else "right")
    ms = (outcome.predicted_step_ms, outcome.measured_step_ms)
    table.add_row("time", *("unknown" if one is None else f"{one:.4g} ms" for one in ms), _ratio(*ms))
    sent = (outcome.predicted_sent_bytes, outcome.measured_sent_bytes)
    told = ["unknown" if one is None else format_bytes(round(one)) for one in sent]
    table.add_row("sent by a rank", *told, _ratio(*sent))
    return table


def _ratio(predicted: float | None, measured: float | None) -> str:
    return f"{measured / predicted:.2f}" if predicted and measured is not None else ""
