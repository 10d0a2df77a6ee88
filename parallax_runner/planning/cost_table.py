"""Shows the cost of each variable on each route."""

from __future__ import annotations

from rich.table import Table

from parallax_runner.plan.plan import Plan, VariablePlan
from parallax_runner.routes.registry import all_routes


def cost_table(plan: Plan) -> Table:
    """Returns a table with a row for each variable, and the predicted time of a step in the last row.

    The table shows milliseconds per step by route. The chosen route is marked.
    """
    rows = f"measured {plan.rows_measured}" if plan.rows_measured else "upper bounds from shapes"
    title = f"cost of each route, ms per step (modelled; constants: {plan.constants}; rows touched: {rows})"
    table = Table(title=title, title_justify="left")
    table.add_column("variable")
    table.add_column("rows touched", justify="right")
    routes = [route.name for route in all_routes() if route.exchanges]
    for route in routes:
        table.add_column(route, justify="right")
    table.add_column("why")
    for variable in plan.variables:
        if variable.gradient != "none":
            table.add_row(
                variable.name,
                _alpha(variable, plan),
                *(_cell(variable, route) for route in routes),
                _why(variable, plan),
            )
    table.add_section()
    table.add_row("a step", "", *[""] * len(routes), _step(plan))
    return table


def _alpha(variable: VariablePlan, plan: Plan) -> str:
    if variable.alpha is None:
        return "all" if variable.gradient == "dense" else "unknown"
    return f"{'' if plan.rows_measured else '≤ '}{100 * variable.alpha:.3g} %"


def _cell(variable: VariablePlan, route: str) -> str:
    found = [cost for cost in variable.costs if cost.route == route]
    if not found:
        return "–"
    return f"{1000 * found[0].secs:.3g}{' ←' if route == variable.route else ''}"


def _why(variable: VariablePlan, plan: Plan) -> str:
    """Returns the parts of the chosen route's cost. If another route is cheaper for this variable alone, also returns
    the fraction of a step that the other route would save.

    The cheaper route can be rejected because of its one-time cost, because it saves too little, or because of `comm`.
    """
    chosen = next((cost for cost in variable.costs if cost.route == variable.route), None)
    if chosen is None:
        return variable.route
    parts = {"link": chosen.link_secs, "waiting": chosen.latency_secs, "work": chosen.work_secs}
    told = f"{variable.route}: " + ", ".join(f"{name} {1000 * secs:.3g}" for name, secs in parts.items())
    cheapest = min(variable.costs, key=lambda cost: cost.secs)
    if cheapest.secs == chosen.secs:
        return told
    step_ms, saved_ms = plan.predicted.step_ms, 1000 * (chosen.secs - cheapest.secs)
    share = f" by {100 * saved_ms / step_ms:.2g} % of the step" if step_ms else ""
    return f"{told}; {cheapest.route} alone is cheaper{share}"


def _step(plan: Plan) -> str:
    predicted = plan.predicted
    if predicted.exchange_ms is None:
        return "unknown: the number of rows sent was not measured"
    exchanges = f"exchanges and updates {predicted.exchange_ms:.3g} ms"
    if predicted.shared_ms:
        kinds = [route.all_of_it for route in all_routes() if route.all_of_it and plan.by_route(route.name)]
        exchanges += f", of which {predicted.shared_ms:.3g} ms are paid once for {' and '.join(kinds)}"
    if predicted.step_ms is None:
        return f"{exchanges}; the computation was not measured"
    overlap_ms = (predicted.compute_ms or 0.0) + predicted.exchange_ms - predicted.step_ms
    overlap = f"; computation and exchanges may overlap by {overlap_ms:.3g} ms" if overlap_ms > 0 else ""
    return f"{predicted.step_ms:.4g} ms: computation {predicted.compute_ms:.4g}, {exchanges}{overlap}"
