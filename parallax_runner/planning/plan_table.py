"""Shows a plan as a table."""

from __future__ import annotations

from rich.table import Table

from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.routes.registry import route_named


def plan_table(plan: Plan) -> Table:
    """Returns a table with a row for each variable.

    The bytes per step are the bytes that the whole cluster sends for the variable, divided by the number of ranks.
    """
    servers = f", {plan.servers} server(s)" if plan.servers else ""
    table = Table(title=f"plan: comm={plan.comm}, {plan.workers} worker(s){servers}", title_justify="left")
    for column in (
        "variable",
        "shape",
        "size",
        "gradient",
        "route",
        "partitions",
        "placed on",
        "rows written",
        "sent/step/rank",
    ):
        table.add_column(column, justify="right" if column in ("size", "partitions", "sent/step/rank") else "left")
    for variable in plan.variables:
        table.add_row(
            variable.name,
            "×".join(map(str, variable.shape)) or "scalar",
            format_bytes(variable.size_bytes),
            variable.gradient,
            variable.route,
            str(variable.partitions),
            "server 0" if variable.name in plan.counters else placed_on(variable, plan),
            variable.rows_written,
            sent(variable, rows_measured=plan.rows_measured is not None),
        )
    total = plan.sent_bytes_per_step
    table.add_section()
    table.add_row(
        "all",
        "",
        format_bytes(sum(variable.size_bytes for variable in plan.variables)),
        *[""] * 5,
        "unknown" if total is None else f"{'≈' if plan.rows_measured else '≤'} {format_bytes(total)}",
    )
    return table


def memory_table(plan: Plan) -> Table:
    """Returns a table with the predicted peak memory of each process."""
    table = Table(title="predicted memory of each process", title_justify="left")
    for column in ("process", "number", "at the start", "in steps", "while saving"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for one in plan.memory:
        peaks = (one.start_bytes, one.step_bytes, one.save_bytes)
        table.add_row(one.role, str(one.count), *map(format_bytes, peaks))
    return table


def placed_on(variable: VariablePlan, plan: Plan) -> str:
    """Returns the location of the variable, for example «server 0 ×2, server 1 ×2» or «rank = row mod 4»."""
    return route_named(plan.placing_route(variable)).place(variable, plan.workers)


def sent(variable: VariablePlan, *, rows_measured: bool = False) -> str:
    """Returns the predicted number of bytes.

    The number is marked «≤» if it depends on the number of distinct ids, or «≈» if the number of ids was measured.
    """
    if variable.sent_bytes_per_step is None:
        return "unknown"
    bound = ("≈ " if rows_measured else "≤ ") if variable.gradient == "sparse" and variable.sent_bytes_per_step else ""
    return bound + format_bytes(variable.sent_bytes_per_step)
