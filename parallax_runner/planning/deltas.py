"""Refuses plans with which it would not be known which rows have changed since a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parallax_runner.analysis.variable_info import GradientKind, RowsWritten, VariableInfo
from parallax_runner.errors import PlanError, Setting
from parallax_runner.plan.plan import Plan
from parallax_runner.routes.registry import route_named

KEY = "ckpt.delta_steps"


def check_deltas(
    delta_steps: int | None, plan: Plan, variables: Sequence[VariableInfo], by_columns: Collection[str]
) -> tuple[str, ...]:
    """Returns notes on the tables of which each delta can have all rows. `variables` are those of the plan, and
    `by_columns` are the names of those that the model divides by columns.

    Raises PlanError if the run saves deltas, and a table is on servers or is divided by columns.
    """
    if delta_steps is None:
        return ()
    tables = [one for one in variables if one.gradient is GradientKind.SPARSE]
    routes = {one.name: one.route for one in plan.variables}
    for table in tables:
        _refuse_servers(table, routes[table.name], plan, delta_steps)
        _refuse_columns(table, by_columns, delta_steps)
    return tuple(
        f"each delta can have all rows of «{table.name}», because its update writes all rows of it or of a slot"
        for table in tables
        if table.rows_written is RowsWritten.ALL
    )


def _refuse_servers(table: VariableInfo, route: str, plan: Plan, delta_steps: int) -> None:
    if route_named(route).on_servers:
        raise PlanError(
            f"comm={plan.comm} has the rows of «{table.name}» on servers, which do not notice what has changed since a "
            "checkpoint"
        ).about(Setting(KEY, str(delta_steps)), remedy="choose comm=sharded or comm=local, or omit this key")


def _refuse_columns(table: VariableInfo, by_columns: Collection[str], delta_steps: int) -> None:
    if table.name in by_columns:
        raise PlanError(
            f"the model divides «{table.full_name}» by columns, so «{table.name}» has only parts of rows"
        ).about(Setting(KEY, str(delta_steps)), remedy="divide the variable by rows, or omit this key")
