"""The advice at the end of the output of `action=plan`: the routes that `comm=auto` would choose, and the time per step
that these routes would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.config.comm_mode import name_by_cost
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.choose import ALIKE, choose_routes
from parallax_runner.planning.cost.model import CostModel

MOST_NAMES = 3  # maximum number of variable names in a list


def advice(plan: Plan, variables: Sequence[VariableInfo], model: CostModel, auto: CostModel) -> str | None:
    """Returns advice in one or two sentences.

    Returns None for one worker, for `comm=auto`, and for steps that the cost model does not cover.

    `model` is the cost model for the plan's own `comm`, and `auto` is the cost model for `comm=auto` on the same
    cluster.
    """
    if plan.comm == name_by_cost() or not _is_covered(plan):
        return None
    own = {planned.name: planned.route for planned in plan.variables}
    choice = choose_routes(variables, auto).routes
    moved = {name: route for name, route in choice.items() if own[name] != route}
    if not moved:
        return "comm=auto would choose the same routes"
    chosen = f"comm=auto would choose {_listed(moved)}"
    told = _saved(variables, model, own, auto, choice)
    if told is None:
        return f"{chosen}; the saving is unknown, because the number of rows touched per step was not measured"
    # comm=auto itself measures steps before it chooses routes, so the advice names the setting that does the same here.
    bounds = (
        "" if plan.rows_measured else ". This estimate uses only shapes; comm.measure_rows=true measures steps first"
    )
    return f"{chosen}: {told}{bounds}"


def _is_covered(plan: Plan) -> bool:
    """Returns whether workers exchange something in the plan's steps, and the cost model covers these steps."""
    return plan.workers > 1 and plan.options.waits_for_all and plan.replicas_per_worker == 1


def _saved(
    variables: Sequence[VariableInfo],
    model: CostModel,
    own: Mapping[str, str],
    auto: CostModel,
    choice: Mapping[str, str],
) -> str | None:
    """Compares the step times. If the computation was not measured, compares only the times of exchanges and updates.

    Returns None if these times are unknown.
    """
    now, then = model.step_secs(variables, own), auto.step_secs(variables, choice)
    what = "a step would take"
    if now is None or then is None:
        now, then = model.exchange_secs(variables, own), auto.exchange_secs(variables, choice)
        what = "the exchanges and updates in a step would take"
    if now is None or then is None:
        return None
    share = 1 - then / now if now > 0 else 0.0
    change = f"{100 * share:.2g} % less" if share > 0 else "no less"
    doubt = ", which is within the model's error" if 0 < share < ALIKE else ""
    return f"{what} {1000 * then:.3g} ms instead of {1000 * now:.3g} ms, {change}{doubt}"


def _listed(moved: Mapping[str, str]) -> str:
    """Returns text such as «ps for embedding, softmax_w; allreduce for bias»."""
    parts = []
    for route in dict.fromkeys(moved.values()):
        names = [name for name, taken in moved.items() if taken == route]
        shown, more = names[:MOST_NAMES], len(names) - MOST_NAMES
        parts.append(f"{route} for {', '.join(shown)}" + (f" and {more} more" if more > 0 else ""))
    return "; ".join(parts)
