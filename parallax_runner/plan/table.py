"""Shows a plan to people."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from parallax_runner.plan.plan import Plan, Route, VariablePlan


def plan_table(plan: Plan) -> Table:
    """A row a variable; bytes per step are what the cluster sends for it, divided by the ranks."""
    servers = f", {plan.servers} server(s)" if plan.servers else ""
    table = Table(title=f"plan: comm={plan.comm}, {plan.workers} worker(s){servers}", title_justify="left")
    for column in ("variable", "shape", "size", "gradient", "route", "partitions", "placed on", "sent/step/rank"):
        table.add_column(column, justify="right" if column in ("size", "partitions", "sent/step/rank") else "left")
    for variable in plan.variables:
        table.add_row(
            variable.name,
            "×".join(map(str, variable.shape)) or "scalar",
            format_bytes(variable.size_bytes),
            variable.gradient,
            variable.route.value,
            str(variable.partitions),
            "server 0" if variable.name in plan.counters else placed_on(variable, plan.workers),
            sent(variable, rows_measured=plan.rows_measured is not None),
        )
    total = plan.sent_bytes_per_step
    table.add_section()
    table.add_row(
        "all",
        "",
        format_bytes(sum(variable.size_bytes for variable in plan.variables)),
        *[""] * 4,
        "unknown" if total is None else f"{'≈' if plan.rows_measured else '≤'} {format_bytes(total)}",
    )
    return table


def placed_on(variable: VariablePlan, workers: int) -> str:
    """For example «server 0 ×2, server 1 ×2»; of rows that ranks own, which rank has which."""
    if variable.route is Route.ALLTOALL:
        return f"rank = row mod {workers}"
    if not variable.shards:
        return "every rank" if workers > 1 else "the worker"
    counts = Counter(shard.server for shard in variable.shards)
    return ", ".join(
        f"server {server}" + (f" ×{count}" if count > 1 else "") for server, count in sorted(counts.items())
    )


def sent(variable: VariablePlan, *, rows_measured: bool = False) -> str:
    """Predicted bytes; «≤» where they depend on how many ids are distinct, «≈» where that was measured."""
    if variable.sent_bytes_per_step is None:
        return "unknown"
    bound = ("≈ " if rows_measured else "≤ ") if variable.gradient == "sparse" and variable.sent_bytes_per_step else ""
    return bound + format_bytes(variable.sent_bytes_per_step)


def format_bytes(number: int) -> str:
    """In powers of 1000, three significant digits: «4.70 MB»."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
