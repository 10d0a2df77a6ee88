"""Adds the cost of each route and the predicted time of a step to a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.plan import Plan, Prediction, RouteCost, VariablePlan
from parallax_runner.planning.choose import possible_routes
from parallax_runner.planning.cost.model import CostModel
from parallax_runner.planning.cost.sent_bytes import predict_sent_bytes
from parallax_runner.planning.cost.touched import touched_rows

NOT_MODELLED = (
    "the step time is not predicted: the cost model covers only steps that wait for all workers, and only workers with "
    "one replica"
)


def explain(plan: Plan, variables: Sequence[VariableInfo], model: CostModel) -> Plan:
    """Returns the plan with costs, fractions of touched rows, and a prediction.

    If rows were measured, the sent bytes are computed from this measurement. If the model does not cover a plan, the
    plan gets a note instead of costs and a prediction.

    `model` is the cost model for the plan's cluster with all configured servers, even if the plan uses no servers.
    """
    by_name = {variable.name: variable for variable in variables}
    plan = dataclasses.replace(
        plan,
        variables=tuple(_counted(planned, by_name[planned.name], plan.replicas, model) for planned in plan.variables),
        rows_measured=None if model.measured is None else model.measured.made,
        constants=model.constants.source,
    )
    if not plan.options.waits_for_all or plan.replicas_per_worker > 1:
        return dataclasses.replace(plan, notes=(*plan.notes, NOT_MODELLED))
    routes = {planned.name: planned.route for planned in plan.variables}
    compute_secs, exchange_secs = model.compute_secs(), model.exchange_secs(variables, routes)
    step_secs = model.step_secs(variables, routes)
    return dataclasses.replace(
        plan,
        variables=tuple(
            dataclasses.replace(planned, costs=_costs(by_name[planned.name], planned.route, model))
            for planned in plan.variables
        ),
        predicted=Prediction(
            step_ms=_ms(step_secs),
            compute_ms=_ms(compute_secs),
            exchange_ms=_ms(exchange_secs),
            shared_ms=_ms(model.once(variables, routes).secs),
        ),
    )


def _counted(planned: VariablePlan, variable: VariableInfo, replicas: int, model: CostModel) -> VariablePlan:
    touched = touched_rows(variable, replicas, model.measured)
    is_sparse = variable.gradient is GradientKind.SPARSE
    return dataclasses.replace(
        planned,
        alpha=touched.share_of(variable) if is_sparse and touched else None,
        sent_bytes_per_step=predict_sent_bytes(
            variable, planned.route, model.cluster.workers, model.options, model.measured
        ),
    )


def _costs(variable: VariableInfo, chosen: str, model: CostModel) -> tuple[RouteCost, ...]:
    routes = possible_routes(variable, model.cluster.servers)
    costs = [model.cost(variable, route) for route in dict.fromkeys([*routes, chosen])]
    return tuple(cost for cost in costs if cost is not None)


def _ms(secs: float | None) -> float | None:
    return None if secs is None else 1000 * secs
