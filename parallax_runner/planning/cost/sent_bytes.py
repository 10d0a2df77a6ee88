"""Predicts the number of bytes that a step sends for a variable on a route."""

from __future__ import annotations

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cost.touched import Touched, touched_rows
from parallax_runner.routes.registry import route_named


def predict_sent_bytes(
    variable: VariableInfo,
    route: str,
    workers: int,
    options: CommOptions,
    measured: Measured | None = None,
) -> int | None:
    """Returns the number of bytes that each rank sends in a step.

    For a sparse gradient, the measured number of rows is used. Without a measurement, all ids are assumed to be
    distinct. Returns None if the number of ids is also unknown.
    """
    found, touched = route_named(route), touched_rows(variable, workers, measured)
    if touched is None:
        if not found.sends_whole:
            return None
        touched = Touched(0.0, 0.0, is_bound=False)  # all rows are sent, regardless of the touched rows
    return round(found.sent_bytes(found.traffic(variable, touched, options), workers))
