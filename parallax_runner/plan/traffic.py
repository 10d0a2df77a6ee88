"""Predicts the bytes that a variable costs in a step: what the whole cluster sends, divided by the ranks.

Formulas of the Parallax paper (EuroSys 2019, section 3), for sending alone (its table counts sent and received) and
without its discount for a server on a worker's own machine: here a server is a process of its own.
"""

from __future__ import annotations

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.plan import PsOptions, Route

ID_BYTES = 8


def predict_sent_bytes(variable: VariableInfo, route: Route, workers: int, ps: PsOptions) -> int | None:
    """Bytes a step and rank; for a sparse gradient as if all ids were distinct; None where their number is unknown."""
    if route is Route.LOCAL:
        return 0
    if route is Route.ALLREDUCE:
        return round(2 * variable.size_bytes * (workers - 1) / workers)
    if variable.gradient_rows is None:
        return 2 * variable.size_bytes if variable.gradient == "dense" else None
    push_bytes = variable.gradient_rows * (variable.row_bytes + ID_BYTES)
    if route is Route.ALLGATHER:
        return push_bytes * (workers - 1)
    if route is Route.ALLTOALL:
        return round(2 * push_bytes * (workers - 1) / workers)
    pull_bytes = variable.gradient_rows * (variable.row_bytes + ID_BYTES)
    if not ps.boundary_between_workers_and_servers:
        pull_bytes = variable.size_bytes
    return push_bytes + pull_bytes
